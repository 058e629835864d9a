//! What the sandbox's first process does before it executes the guest.
//!
//! It makes everything that needs the host's tree (`/proc`, without which the kernel grants no new
//! instance) before it enters the new root; `/dev` and `/sys` were made ahead. It resolves paths of
//! the sandbox only after that, when a symbolic link cannot lead out of the sandbox.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::process::{Resource, Rlimit, chdir, fchdir, getrlimit, pivot_root, setrlimit, setsid, umask};
use rustix::system::sethostname;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::capabilities;
use crate::failure::{At, Failure};
use crate::handover::{GuestDescriptors, lift};
use crate::landlock;
use crate::launch::limit_processes;
use crate::pseudo::{self, attach};
use crate::seccomp::Program;
use crate::spec::{BootSpec, Channel, Files, Preparation, Report};
use crate::stopwatch::Stopwatch;
use crate::sys::namespace::{SandboxNamespaces, unshare_cgroups};
use crate::sys::process::{close_on_exec_from, exec_descriptor, place_descriptor};

/// Limit of open files per process; the value of Docker and systemd.
const OPEN_FILES: u64 = 1 << 20;

const GUEST_NAME: &CStr = c"sandbar-guest";
const GUEST_PATH: &CStr = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the first process gets from the launcher, of which it is a copy.
pub(super) struct FirstProcess<'a> {
    /// To the server.
    pub(super) server: &'a Channel,
    /// From the launcher, which sends a message once the server knows of this process.
    pub(super) known: Channel,
    /// The mounts of the file tree that exist already.
    pub(super) mounted: Vec<OwnedFd>,
    /// From the process that mounts the others, if there are any.
    pub(super) mounter: Option<Channel>,
    pub(super) devices: pseudo::Devices,
    pub(super) namespaces: &'a SandboxNamespaces,
    pub(super) preparation: &'a Preparation,
    pub(super) spec: &'a BootSpec,
    pub(super) handover: &'a GuestDescriptors,
    pub(super) filter: &'a Program,
    pub(super) watch: Stopwatch,
}

/// Sets up the sandbox and executes the guest. Returns only on failure.
pub(super) fn become_guest(first: FirstProcess<'_>) -> Failure {
    match try_become_guest(first) {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

fn try_become_guest(first: FirstProcess<'_>) -> Result<Infallible, Failure> {
    let FirstProcess { server, known, mounted, mounter, devices, namespaces, preparation, spec, handover, .. } = first;
    let FirstProcess { filter, mut watch, .. } = first;
    // While the launcher still lives in the namespace that this process leaves.
    namespaces.enter_mounts().at("enter the mount namespace")?;
    unshare_cgroups().at("make the cgroup namespace")?;
    become_root(preparation.id_count).at("become root of the sandbox")?;
    umask(Mode::empty());
    watch.mark("sandbox: is root");
    let tree = pseudo::Tree::assemble(devices, spec)?;
    watch.mark("sandbox: pseudo file systems made");
    receive_from(&known, "wait for the server")?;
    drop(known);
    // Not earlier: until the server has received the pid of this process, it can reap it only as a
    // member of the launcher's process group.
    setsid().at("start a session")?;
    let mut mounts = mounted;
    if let Some(mounter) = mounter {
        mounts.extend(receive_from(&mounter, "wait for the file tree")?);
    }
    watch.mark("sandbox: file tree received");
    let volumes = enter(mounts, tree, &spec.files)?;
    watch.mark("sandbox: file tree entered");
    sethostname(spec.hostname.as_bytes()).at("set the host name")?;
    umask(Mode::from_raw_mode(0o022));
    for (mount, volume) in volumes.iter().zip(&spec.files.volumes) {
        attach(mount, &volume.at)?;
    }
    write_names(&spec.hostname, spec.nameserver);
    set_resource_limits().at("set the resource limits")?;
    limit_processes(preparation).at("limit the processes")?;
    watch.mark("sandbox: names and limits set");

    let null = File::options().read(true).write(true).open("/dev/null").at("open /dev/null")?;
    place_descriptors(&null, handover).at("arrange the descriptors")?;
    capabilities::limit_to_kept().at("limit the capabilities")?;
    watch.mark("sandbox: locked down but for the filter");
    // After the new root is entered: a leaked descriptor of the host then opens nothing.
    landlock::restrict_to_root("/").at("apply Landlock")?;
    // Without no_new_privs the kernel installs the filter only while this process has SYS_ADMIN in
    // its user namespace; the exec drops that capability.
    filter.install().at("install the system-call filter")?;
    watch.mark("sandbox: filter installed");
    server.send(&Report::Timings(watch.marks), &[]).at("report to the server")?;
    server.send(&Report::Executing, &[]).at("report to the server")?;
    let mark = spec.mark.as_deref().map(CString::new).transpose().map_err(io::Error::from).at("read the mark")?;
    let arguments: Vec<&CStr> = [GUEST_NAME].into_iter().chain(mark.as_deref()).collect();
    Err(exec_descriptor(handover.guest.as_fd(), &arguments, &[GUEST_PATH])).at("execute the guest")
}

pub(crate) fn receive_from(channel: &Channel, step: &str) -> Result<Vec<OwnedFd>, Failure> {
    let ((), descriptors) = channel.receive().at(step)?.ok_or(Failure::closed(step))?;
    Ok(descriptors)
}

/// Switches to root of the new user namespace, which has `id_count` ids.
pub(crate) fn become_root(id_count: u32) -> rustix::io::Result<()> {
    match set_thread_groups(&[]) {
        // With a single id the kernel forbids setgroups.
        Err(Errno::PERM) if id_count == 1 => {}
        left => left?,
    }
    set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
}

/// Makes the first overlay this process's root, mounts the other overlays and the pseudo file
/// systems, and unmounts the host's tree. Returns the mounts that follow the overlays, which are
/// the volumes.
fn enter(mut overlays: Vec<OwnedFd>, tree: pseudo::Tree, files: &Files) -> Result<Vec<OwnedFd>, Failure> {
    let volumes = overlays.split_off(files.overlays.len().min(overlays.len()));
    let mut overlays = overlays.into_iter().zip(&files.overlays);
    let (root, _) = overlays.next().ok_or(Failure::closed("receive the root"))?;
    change_root(&root)?;
    for (mount, overlay) in overlays {
        attach(&mount, &overlay.at)?;
    }
    tree.attach()?;
    leave_previous_root()?;
    Ok(volumes)
}

/// Makes a detached mount this process's root and unmounts the previous root.
pub(crate) fn enter_root(root: &OwnedFd) -> Result<(), Failure> {
    change_root(root)?;
    leave_previous_root()
}

/// Makes a detached mount this process's root, on which the previous root is stacked then. Absolute
/// paths lead into the new one.
fn change_root(root: &OwnedFd) -> Result<(), Failure> {
    // Any directory of the host's tree can hold the new root: only this process sees it there, and
    // only until pivot_root.
    move_mount(root, "", CWD, "/usr", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).at("mount the root")?;
    fchdir(root).at("enter the root")?;
    pivot_root(".", ".").at("change the root")
}

fn leave_previous_root() -> Result<(), Failure> {
    unmount(".", UnmountFlags::DETACH).at("let go of the host's tree")?;
    chdir("/").at("enter the root")
}

/// Writes the sandbox's host name, hosts and resolver files. The engine's values replace those of
/// an earlier boot. Errors are ignored: a sandbox whose disk is full, or whose user has broken
/// `/etc`, must still start.
fn write_names(hostname: &str, nameserver: Ipv4Addr) {
    let hosts = format!(
        "127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\nff02::1\tip6-allnodes\n\
         ff02::2\tip6-allrouters\n"
    );
    let resolver = format!("nameserver {nameserver}\n");
    let files = [("/etc/hostname", format!("{hostname}\n")), ("/etc/hosts", hosts), ("/etc/resolv.conf", resolver)];
    for (path, text) in files {
        let _ = write_if_different(Path::new(path), &text);
    }
}

fn write_if_different(path: &Path, text: &str) -> io::Result<()> {
    // Programs of an earlier boot may have left a file that does not fit into memory.
    let is_alike = |metadata: fs::Metadata| metadata.is_file() && metadata.len() == text.len() as u64;
    if path.symlink_metadata().is_ok_and(is_alike) && fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    // Replaced, not overwritten: the existing entry may be a symbolic link to any path.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())
}

/// Soft and hard limit of a core dump, in bytes. With a limit of exactly 1 the kernel neither
/// writes a file nor runs the crash handler that the host's `core_pattern` names; with 0 it still
/// runs the handler, as root of the host, on memory whose content the sandbox controls. The
/// system-call filter prevents programs from changing the limit.
const CORE_BYTES: u64 = 1;

pub(crate) fn forbid_core_dumps() -> rustix::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(CORE_BYTES), maximum: Some(CORE_BYTES) })
}

fn set_resource_limits() -> rustix::io::Result<()> {
    forbid_core_dumps()?;
    // Raising the hard limit requires SYS_RESOURCE, which root in a container may lack.
    let all = Rlimit { current: Some(OPEN_FILES), maximum: Some(OPEN_FILES) };
    setrlimit(Resource::Nofile, all).or_else(|_| {
        let granted = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: granted, maximum: granted })
    })
}

/// Assigns descriptors 0 to 4 as the guest expects them; exec closes all others.
fn place_descriptors(null: &File, handover: &GuestDescriptors) -> io::Result<()> {
    // A source must not have a number that is about to be assigned.
    let null = lift(null)?;
    let (listener, config) = (&handover.listener, &handover.config);
    for (descriptor, number) in [(&null, 0), (&null, 1), (&null, 2), (listener, 3), (config, 4)] {
        place_descriptor(descriptor.as_fd(), number)?;
    }
    close_on_exec_from(5)
}
