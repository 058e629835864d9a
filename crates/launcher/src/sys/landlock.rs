//! Landlock's three calls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
/// From version 7 on: denials in a sandbox, and in domains that it makes, do not fill the host's
/// audit log.
const LOG_SAME_EXEC_OFF: u32 = 1;
const LOG_SUBDOMAINS_OFF: u32 = 1 << 2;

/// The rights that are denied unless a rule allows them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ruleset {
    pub(crate) files: u64,
    pub(crate) net: u64,
    pub(crate) scoped: u64,
}

/// The kernel's structure, without padding.
#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The version of Landlock.
pub(crate) fn version() -> io::Result<u32> {
    let null = std::ptr::null::<Ruleset>();
    // SAFETY: with this flag the kernel wants a null pointer and no size, and only answers.
    let answer = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, null, 0, CREATE_RULESET_VERSION) };
    checked(answer).map(|version| u32::try_from(version).unwrap_or(0))
}

pub(crate) fn create(version: u32, ruleset: Ruleset) -> io::Result<OwnedFd> {
    // An older kernel refuses a structure that is larger than the one it knows.
    let size = match version {
        ..=3 => size_of::<u64>(),
        4 | 5 => 2 * size_of::<u64>(),
        _ => size_of::<Ruleset>(),
    };
    // SAFETY: the kernel reads `size` bytes of the structure, which has at least as many and
    // outlives the call.
    let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size, 0) };
    let descriptor = i32::try_from(checked(made)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Allows `rights` below the directory.
pub(crate) fn add_path(ruleset: &OwnedFd, directory: &impl AsRawFd, rights: u64) -> io::Result<()> {
    let rule = PathBeneath { allowed: rights, parent: directory.as_raw_fd() };
    let ruleset = ruleset.as_raw_fd();
    // SAFETY: the kernel reads the structure, which outlives the call; both descriptors are open.
    let added = unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &raw const rule, 0) };
    checked(added).map(drop)
}

/// Applies the rules to this thread and its descendants. The thread has SYS_ADMIN in its user
/// namespace, or has set `no_new_privs`.
pub(crate) fn restrict(version: u32, ruleset: &OwnedFd) -> io::Result<()> {
    let flags = if version >= 7 { LOG_SAME_EXEC_OFF | LOG_SUBDOMAINS_OFF } else { 0 };
    // SAFETY: no pointers; the descriptor is open.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), flags) }).map(drop)
}
