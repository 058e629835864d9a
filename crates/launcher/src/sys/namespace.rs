//! Namespaces: making a process inside new ones, and leaving the mounts of the host alone.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::Pid;
use rustix::thread::{
    CapabilitiesSecureBits, Gid, Uid, UnshareFlags, capabilities_secure_bits, set_capabilities_secure_bits,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

/// Which side of [`clone_into_namespaces`] is running.
pub(crate) enum Side {
    /// The caller; the child as the caller's pid namespace numbers it.
    Parent(Pid),
    /// The new process, alone in its namespaces.
    Child,
}

/// Does not fit the type that `libc` gives it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Forks a child into new user, mount, pid, network, ipc and uts namespaces, and into the cgroup (of the second version) whose
/// directory is `cgroup`: being born there costs nothing, moving there a grace period of the kernel.
///
/// The child's parent is the caller's own parent (`CLONE_PARENT`): the caller is a launcher that ends at once, and the
/// server behind it is the one that can reap the child.
///
/// The user namespace belongs to the user and group `owner`. What the kernel counts by user (inotify instances, pending signals,
/// namespaces) it counts inside by who does it and outside by the namespace's owner, so each sandbox needs an owner of its own: with
/// root as owner of all, one of them could use up what all share. The caller is root, and is so again afterwards; the child's
/// ids are the owner's until it takes others. An owner of 0 is the caller itself: it may have no other ids to give.
///
/// Only a process with a single thread may call this: the child has a copy of the memory as it is, with every lock that
/// another thread happens to hold.
pub(crate) fn clone_into_namespaces(owner: u32, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    if owner == 0 {
        return clone(cgroup);
    }
    // Without NO_SETUID_FIXUP the change of ids would take the capabilities along.
    let before = capabilities_secure_bits()?;
    set_capabilities_secure_bits(before | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_effective_ids(owner)?;
    let side = clone(cgroup);
    // In the child no id has a name yet, and the new namespace has brought secure bits of its own.
    if !matches!(side, Ok(Side::Child)) {
        set_effective_ids(0)?;
        set_capabilities_secure_bits(before)?;
    }
    side
}

/// For a process that is root: the real ids stay root's, as a change of those would subject it to limits that root does not have.
fn set_effective_ids(id: u32) -> io::Result<()> {
    set_thread_res_gid(Gid::ROOT, Gid::from_raw(id), Gid::ROOT)?;
    Ok(set_thread_res_uid(Uid::ROOT, Uid::from_raw(id), Uid::ROOT)?)
}

fn clone(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let into_cgroup = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
    let flags = u64::from((namespaces | libc::CLONE_PARENT).cast_unsigned()) | into_cgroup;
    // SAFETY: a structure of plain integers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags;
    if let Some(cgroup) = cgroup {
        arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).expect("an open descriptor is not negative");
    }
    // SAFETY: without CLONE_VM and with a null stack this is a fork; the kernel reads the structure, whose size is given, and
    // writes nothing. The caller promises to be single-threaded, so the child's copy of the allocator and of every other lock is
    // consistent.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("clone returns a positive pid");
            Ok(Side::Parent(pid))
        }
    }
}

/// Moves the calling process, which must have a single thread, into a user namespace of its own, where it has no ids yet.
pub(crate) fn unshare_users() -> io::Result<()> {
    // SAFETY: user namespaces are nothing Rust code relies on being shared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

/// Roots the calling process's view of cgroups at the ones it is in.
pub(crate) fn unshare_cgroups() -> io::Result<()> {
    // SAFETY: as below; cgroups are not anything Rust code relies on.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }?)
}

/// Moves the calling process into a mount namespace of its own, which still receives the host's later mounts but sends
/// none back. With several threads only the calling one would move: call it before any other is started.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: NEWNS neither unshares the descriptor table nor anything else that Rust code relies on being shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}
