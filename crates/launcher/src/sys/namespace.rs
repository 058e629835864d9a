//! Creates processes in new namespaces, and leaves the host's mount namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::Pid;
use rustix::thread::{
    CapabilitiesSecureBits, Gid, Uid, UnshareFlags, capabilities_secure_bits, set_capabilities_secure_bits,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

/// Which process returns from [`clone_into_namespaces`].
pub(crate) enum Side {
    /// The caller, with the child's pid in the caller's pid namespace.
    Parent(Pid),
    /// The new process, alone in its namespaces.
    Child,
}

/// The flag does not fit the type of those in `libc`.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Forks a child into new user, mount, pid, network, ipc and uts namespaces, and into the cgroup
/// (of version 2) whose directory is `cgroup`: creating a process there costs nothing, moving it
/// there an RCU grace period.
///
/// The child's parent is the caller's own parent (`CLONE_PARENT`): the caller is a launcher that
/// exits soon, and the server, which is its parent, reaps the child.
///
/// The user namespace belongs to the user and group `owner`. Resources that the kernel counts per
/// user (inotify instances, pending signals, namespaces) are counted inside for the user of the
/// process and outside for the namespace's owner, so each sandbox needs its own owner: with root as
/// the owner of all, one sandbox could exhaust what all share. The caller is root, before and
/// afterwards; the child has the owner's ids until it changes them. An owner of 0 is the caller
/// itself, which may have no other ids to assign.
///
/// Only a process with a single thread may call this: the child gets a copy of the memory as it is,
/// with every lock that another thread happens to hold.
pub(crate) fn clone_into_namespaces(owner: u32, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    if owner == 0 {
        return clone(cgroup);
    }
    // Without NO_SETUID_FIXUP the change of ids would clear the capabilities.
    let before = capabilities_secure_bits()?;
    set_capabilities_secure_bits(before | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
    set_effective_ids(owner)?;
    let side = clone(cgroup);
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

/// Every kind of namespace but cgroups.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

fn clone(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    let into_cgroup = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
    // SAFETY: a structure of plain integers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from((NAMESPACES | libc::CLONE_PARENT).cast_unsigned()) | into_cgroup;
    if let Some(cgroup) = cgroup {
        arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).expect("an open descriptor is not negative");
    }
    clone3(&arguments)
}

/// Forks a child of the caller into a new namespace of every kind; the caller waits for it. As for
/// [`clone_into_namespaces`], the caller has a single thread.
pub(crate) fn clone_confined() -> io::Result<Side> {
    // SAFETY: a structure of plain integers, for which zero means "not used".
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::from((NAMESPACES | libc::CLONE_NEWCGROUP).cast_unsigned());
    arguments.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
    clone3(&arguments)
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
