//! The supervisor and the confined process.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::retry_on_intr;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, WaitStatus, pidfd_open,
    pidfd_send_signal, set_dumpable_behavior, set_parent_process_death_signal, setpriority_process, setrlimit, umask,
    waitpid,
};
use rustix::thread::{CapabilitySet, set_no_new_privs};
use serde::de::DeserializeOwned;

use super::{Confinement, Ending, Ids, Report};
use crate::capabilities::{FOR_FILES, keep_only};
use crate::failure::{At, Failure};
use crate::handover::lift;
use crate::inside::{become_root, enter_root, forbid_core_dumps};
use crate::landlock::restrict_to_root;
use crate::launch::offer_to_out_of_memory_killer;
use crate::pseudo;
use crate::seccomp::confined_filter;
use crate::spec::{Channel, OnDisk};
use crate::sys::mount::disarm;
use crate::sys::namespace::{Side, clone_confined};
use crate::sys::process::{close_from, place_descriptor};

/// Limit of open files of the confined process: the layers of an image, plus one per directory
/// level when a tree is removed.
const OPEN_FILES: u64 = 1024;
/// The lowest priority: a caller waits seconds for an image in any case.
const NICE: i32 = 19;

/// Serves one call of [`super::call`]: confines a child of this process, which calls `work` with
/// the caller's request, the descriptors that came with it, and the pipe for the answer. Intended
/// for the main function of a separate program: it closes every descriptor but the standard ones,
/// and never returns.
pub fn run<W: DeserializeOwned>(work: impl FnOnce(W, Vec<OwnedFd>, File)) -> ! {
    let channel = match close_from(3).and_then(|()| lift(rustix::stdio::stdin())) {
        Ok(descriptor) => Channel::from(descriptor),
        Err(_) => exit(2),
    };
    let request = match Request::receive(&channel) {
        Ok(request) => request,
        Err(failure) => fail(&channel, failure),
    };
    let Request { confinement, work: asked, answer, tree, files, outer, inner } = request;
    match clone_confined().at("make the namespaces") {
        Err(failure) => fail(&channel, failure),
        Ok(Side::Child) => {
            drop((outer, tree));
            if let Err(failure) = confine(&inner, &confinement) {
                fail(&channel, failure);
            }
            drop((channel, inner));
            work(asked, files, answer);
            exit(0)
        }
        Ok(Side::Parent(pid)) => {
            // The server reads the pipe to end of file, and the disk space of a layer is free once
            // the confined process has closed its file.
            drop((inner, answer, files));
            match supervise(&channel, outer, pid, confinement.ids, tree) {
                Ok(ending) => {
                    // Sending fails only when the server is gone.
                    let _ = channel.send(&Report::Ended(ending), &[]);
                    exit(0)
                }
                Err(failure) => fail(&channel, failure),
            }
        }
    }
}

fn fail(channel: &Channel, Failure { step, errno }: Failure) -> ! {
    let _ = channel.send(&Report::Failed { step, errno }, &[]);
    exit(1)
}

/// The server's request, and the channel between supervisor and confined process.
struct Request<W> {
    confinement: Confinement,
    work: W,
    answer: File,
    tree: Option<OwnedFd>,
    files: Vec<OwnedFd>,
    outer: Channel,
    inner: Channel,
}

impl<W: DeserializeOwned> Request<W> {
    fn receive(channel: &Channel) -> Result<Self, Failure> {
        offer_to_out_of_memory_killer().at("offer the process to the out-of-memory killer")?;
        let received = channel.receive().at("read the request")?;
        let ((confinement, work), descriptors): ((Confinement, W), _) =
            received.ok_or(Failure::closed("read the request"))?;
        let mut descriptors = descriptors.into_iter();
        let answer = File::from(descriptors.next().ok_or(Failure::closed("take the pipe"))?);
        let tree =
            if confinement.has_tree { Some(descriptors.next().ok_or(Failure::closed("take the tree"))?) } else { None };
        let (outer, inner) = Channel::pair().at("make a channel to the confined process")?;
        Ok(Self { confinement, work, answer, tree, files: descriptors.collect(), outer, inner })
    }
}

/// Hands over ids and tree, and waits until the confined process ends. Closing `outer` ends a
/// process that still waits for them.
fn supervise(channel: &Channel, outer: Channel, pid: Pid, ids: Ids, tree: Option<OwnedFd>) -> Result<Ending, Failure> {
    match hand_over(&outer, pid, ids, tree) {
        Ok(()) => {
            watch(channel, pid)?;
            wait(pid)
        }
        Err(failure) => {
            // The confined process reads end of file from the channel, and exits.
            drop(outer);
            wait(pid)?;
            Err(failure)
        }
    }
}

/// Writes the id maps of the confined process and sends it the tree.
fn hand_over(outer: &Channel, pid: Pid, ids: Ids, tree: Option<OwnedFd>) -> Result<(), Failure> {
    let process = pid.as_raw_nonzero();
    let write = |name: &str, text: &str| {
        // A single write: the kernel refuses a second one.
        let opened = File::options().write(true).open(format!("/proc/{process}/{name}"));
        opened.and_then(|mut file| file.write_all(text.as_bytes())).at(&format!("write {name}"))
    };
    if ids.count == 1 {
        write("setgroups", "deny")?;
    }
    write("gid_map", &format!("0 {} {}\n", ids.group, ids.count))?;
    write("uid_map", &format!("0 {} {}\n", ids.user, ids.count))?;
    let Some(tree) = tree else { return outer.send(&(), &[]).at("wake the confined process") };
    let namespace = File::open(format!("/proc/{process}/ns/user")).at("open the user namespace")?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(&tree, "", flags).at("clone the tree")?;
    let mapped = (ids.on_disk == OnDisk::ZeroBased).then(|| namespace.as_fd());
    disarm(mount.as_fd(), mapped).at("map the ids of the tree")?;
    outer.send(&(), &[mount.as_fd()]).at("hand over the tree")
}

/// Returns when the confined process has ended. Kills it when the server closes its end of the
/// channel, because it died or cancelled the call.
fn watch(channel: &Channel, pid: Pid) -> Result<(), Failure> {
    let process = pidfd_open(pid, PidfdFlags::empty()).at("watch the confined process")?;
    let mut watched = [PollFd::new(&process, PollFlags::IN), PollFd::new(channel, PollFlags::IN)];
    retry_on_intr(|| poll(&mut watched, None)).at("watch the confined process")?;
    if watched[0].revents().is_empty() {
        pidfd_send_signal(&process, Signal::KILL).at("end the confined process")?;
    }
    Ok(())
}

fn wait(pid: Pid) -> Result<Ending, Failure> {
    let ended = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty())).at("wait for the confined process")?;
    let (_, status) = ended.ok_or(Failure::closed("wait for the confined process"))?;
    Ok(ending(status))
}

fn ending(status: WaitStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Exit(code),
        (None, signal) => Ending::Signal(signal.unwrap_or(0)),
    }
}

/// Confines the calling process before it reads anything hostile.
fn confine(supervisor: &Channel, confinement: &Confinement) -> Result<(), Failure> {
    let step = "wait for the ids and the tree";
    let ((), mounts) = supervisor.receive().at(step)?.ok_or(Failure::closed(step))?;
    become_root(confinement.ids.count).at("become root of the user namespace")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).at("forbid traces")?;
    let null =
        lift(File::options().read(true).write(true).open("/dev/null").at("open /dev/null")?).at("open /dev/null")?;
    let root = match mounts.into_iter().next() {
        Some(tree) => tree,
        None => pseudo::make(
            "tmpfs",
            &[("mode", "555"), ("size", "4k"), ("nr_inodes", "1")],
            pseudo::INERT | MountAttrFlags::MOUNT_ATTR_RDONLY,
        )?,
    };
    enter_root(&root)?;
    drop(root);
    umask(Mode::empty());
    limit_resources(confinement).at("set the resource limits")?;
    set_no_new_privs(true).at("give up new privileges")?;
    keep_only(if confinement.has_tree { FOR_FILES } else { CapabilitySet::empty() }).at("limit the capabilities")?;
    restrict_to_root("/").at("apply Landlock")?;
    // After the last change of credentials, which would reset the signal.
    set_parent_process_death_signal(Some(Signal::KILL)).at("tie its life to the supervisor's")?;
    // Fails if the supervisor died before the signal was set: its end of the channel is closed.
    supervisor.send(&(), &[]).at("find the supervisor")?;
    // Descriptor 0 is the channel to the server.
    place_descriptor(null.as_fd(), 0).at("arrange the descriptors")?;
    drop(null);
    confined_filter().install().at("install the system-call filter")
}

fn limit_resources(confinement: &Confinement) -> rustix::io::Result<()> {
    forbid_core_dumps()?;
    setpriority_process(None, NICE)?;
    for (resource, most) in [
        (Resource::As, confinement.memory_bytes),
        (Resource::Cpu, confinement.cpu_seconds),
        (Resource::Nofile, OPEN_FILES),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
