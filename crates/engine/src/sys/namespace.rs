//! Namespaces: making a process inside new ones, and leaving the mounts of the host alone.

use std::io;

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::Pid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Which side of [`clone_into_namespaces`] is running.
pub(crate) enum Side {
    /// The caller; the child as the caller's pid namespace numbers it.
    Parent(Pid),
    /// The new process, alone in its namespaces.
    Child,
}

/// Forks a child into new user, mount, pid, network, ipc, uts and cgroup namespaces.
///
/// The child's parent is the caller's own parent (`CLONE_PARENT`): the caller is a launcher that ends at once, and the
/// server behind it is the one that can reap the child. The cgroup namespace is rooted at the caller's cgroup.
///
/// Only a process with a single thread may call this: the child has a copy of the memory as it is, with every lock that
/// another thread happens to hold.
pub(crate) fn clone_into_namespaces() -> io::Result<Side> {
    let flags = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_PARENT
        | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and with a null stack this is a fork; no pointer argument is read. The caller promises to be
    // single-threaded, so the child's copy of the allocator and of every other lock is consistent.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("clone returns a positive pid");
            Ok(Side::Parent(pid))
        }
    }
}

/// Moves the calling process into a mount namespace of its own, which still receives the host's later mounts but sends
/// none back. With several threads only the calling one would move: call it before any other is started.
pub(crate) fn unshare_mounts() -> io::Result<()> {
    // SAFETY: NEWNS neither unshares the descriptor table nor anything else that Rust code relies on being shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}
