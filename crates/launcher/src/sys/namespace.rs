//! Creates processes in new namespaces, and leaves the host's mount namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::Pid;
use rustix::thread::{
    CapabilitiesSecureBits, Gid, LinkNameSpaceType, Uid, UnshareFlags, capabilities_secure_bits,
    move_into_link_name_space, set_capabilities_secure_bits, set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

/// Which process returns from a clone.
pub(crate) enum Side {
    /// The caller, with the child's pid in the caller's pid namespace.
    Parent(Pid),
    /// The new process.
    Child,
}

/// The flag does not fit the type of those in `libc`.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Forks a child into new user, mount, network, ipc and uts namespaces; the caller waits for it.
///
/// The user namespace belongs to the user and group `owner`. Resources that the kernel counts per
/// user (inotify instances, pending signals, namespaces) are counted inside for the user of the
/// process and outside for the namespace's owner, so each sandbox needs its own owner: with root as
/// the owner of all, one sandbox could exhaust what all share. The caller is root, before and
/// afterwards; the child has the owner's ids until it changes them. An owner of 0 is the caller
/// itself, which may have no other ids to assign.
///
/// Only a process with a single thread may call this: the child gets a copy of the memory as it is,
/// with every lock that another thread happens to hold. That holds for the other clones, too.
pub(crate) fn clone_into_namespaces(owner: u32) -> io::Result<Side> {
    if owner == 0 {
        return clone_child(OF_SANDBOX);
    }
    // Without NO_SETUID_FIXUP the change of ids would clear the capabilities.
    let before = capabilities_secure_bits()?;
    set_capabilities_secure_bits(before | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_effective_ids(owner)?;
    let side = clone_child(OF_SANDBOX);
    // In the child no id is mapped yet, and the new namespace has its own secure bits.
    if !matches!(side, Ok(Side::Child)) {
        set_effective_ids(0)?;
        set_capabilities_secure_bits(before)?;
    }
    side
}

/// For a process that is root. The real ids stay root's: a change of those would subject the
/// process to limits that root does not have.
fn set_effective_ids(id: u32) -> io::Result<()> {
    set_thread_res_gid(Gid::ROOT, Gid::from_raw(id), Gid::ROOT)?;
    Ok(set_thread_res_uid(Uid::ROOT, Uid::from_raw(id), Uid::ROOT)?)
}

/// The namespaces that a sandbox has before its first process.
const OF_SANDBOX: libc::c_int =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// The namespaces that [`clone_into_namespaces`] made, held open: they outlive their processes.
pub(crate) struct SandboxNamespaces {
    pub(crate) user: OwnedFd,
    pub(crate) network: OwnedFd,
    mount: OwnedFd,
    others: [(LinkNameSpaceType, OwnedFd); 2],
}

impl SandboxNamespaces {
    /// Opens those of the process `pid`.
    pub(crate) fn of(pid: Pid) -> io::Result<Self> {
        let open = |kind| -> io::Result<OwnedFd> {
            Ok(File::open(format!("/proc/{}/ns/{kind}", pid.as_raw_nonzero()))?.into())
        };
        Ok(Self {
            user: open("user")?,
            network: open("net")?,
            mount: open("mnt")?,
            others: [
                (LinkNameSpaceType::InterProcessCommunication, open("ipc")?),
                (LinkNameSpaceType::HostNameAndNISDomainName, open("uts")?),
            ],
        })
    }

    /// Moves the calling process into all of them but the mount namespace. It has all capabilities
    /// inside and none outside then, and keeps its ids, which are not mapped there.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // The user namespace first: the others belong to it.
        move_into_link_name_space(self.user.as_fd(), Some(LinkNameSpaceType::User))?;
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        for (kind, namespace) in &self.others {
            move_into_link_name_space(namespace.as_fd(), Some(*kind))?;
        }
        Ok(())
    }

    /// Moves the calling process, which has entered the others, into the mount namespace.
    ///
    /// The last process that leaves a mount namespace waits until the kernel has removed all mounts
    /// in it.
    pub(crate) fn enter_mounts(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))?)
    }
}

/// Forks a child into a new pid namespace, as its process 1, and into the cgroup (of version 2)
/// whose directory is `cgroup`: creating a process there costs nothing, moving it there an RCU
/// grace period.
///
/// The child's parent is the caller's own parent (`CLONE_PARENT`): the caller is a launcher that
/// exits soon, and the server, which is its parent, reaps the child.
pub(crate) fn clone_first(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    let mut arguments = no_arguments();
    arguments.flags = u64::from((libc::CLONE_PARENT | libc::CLONE_NEWPID).cast_unsigned());
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).expect("an open descriptor is not negative");
    }
    clone3(&arguments)
}

/// Forks a process whose parent is the caller's own parent.
pub(crate) fn clone_sibling() -> io::Result<Side> {
    let mut arguments = no_arguments();
    arguments.flags = u64::from(libc::CLONE_PARENT.cast_unsigned());
    clone3(&arguments)
}

/// Forks a child of the caller into a new namespace of every kind; the caller waits for it.
pub(crate) fn clone_confined() -> io::Result<Side> {
    clone_child(OF_SANDBOX | libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP)
}

fn clone_child(namespaces: libc::c_int) -> io::Result<Side> {
    let mut arguments = no_arguments();
    arguments.flags = u64::from(namespaces.cast_unsigned());
    arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    clone3(&arguments)
}

fn no_arguments() -> libc::clone_args {
    // SAFETY: a structure of plain integers, for which zero means "not used".
    unsafe { std::mem::zeroed() }
}

/// Calls clone3. The caller sets neither CLONE_VM nor a stack.
fn clone3(arguments: &libc::clone_args) -> io::Result<Side> {
    // SAFETY: without CLONE_VM and with a null stack this is a fork; the kernel reads the
    // structure, whose size is given, and writes nothing. The caller promises to be
    // single-threaded, so the child's copy of the allocator and of every other lock is consistent.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const *arguments, size_of::<libc::clone_args>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("clone returns a positive pid");
            Ok(Side::Parent(pid))
        }
    }
}

/// Moves the calling process, which must have a single thread, into a new user namespace, where no
/// ids are mapped yet.
pub(crate) fn unshare_users() -> io::Result<()> {
    // SAFETY: user namespaces are nothing Rust code relies on being shared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

/// Moves the calling process into a cgroup namespace, whose root is its present cgroups.
pub(crate) fn unshare_cgroups() -> io::Result<()> {
    // SAFETY: as below; cgroups are not anything Rust code relies on.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }?)
}

/// Moves the calling process into a new mount namespace, which still receives the host's later
/// mounts but propagates none back. Only the calling thread moves: call it before another one is
/// started.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: NEWNS neither unshares the descriptor table nor anything else that Rust code relies
    // on being shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}
