//! Landlock: irrevocable rules about files, sockets and signals that a process applies to itself
//! and its descendants. It is the second layer behind mount and pid namespaces: a leaked descriptor
//! of the host, for example, still opens nothing.
//!
//! A rule on a process's root applies to all mounts below it. A process under Landlock cannot
//! mount, so the rules are applied last.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};

use crate::sys::landlock::{Ruleset, add_path, create, restrict, version};

/// The thirteen file access rights of version 1, from execute to make symbolic links.
const FIRST: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// The scopes of abstract unix sockets and of signals.
const ALL_SCOPES: u64 = 3;

/// The Landlock version of the kernel. `None` where the kernel lacks Landlock, or has version 1,
/// under which files cannot be moved to another directory.
pub fn usable_version() -> Option<u32> {
    version().ok().filter(|version| *version >= 2)
}

/// All file access rights of this version.
fn all_files(version: u32) -> u64 {
    let later = [(2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)];
    later.iter().filter(|(since, _)| version >= *since).fold(FIRST, |all, (_, right)| all | right)
}

/// Allows this process and its descendants every access below `root` and none elsewhere, and no
/// abstract sockets and signals of other processes. Returns the version used; `None` where the
/// kernel has no usable one.
pub(crate) fn restrict_to_root(root: &str) -> io::Result<Option<u32>> {
    let Some(version) = usable_version() else { return Ok(None) };
    let scoped = if version >= 6 { ALL_SCOPES } else { 0 };
    let files = all_files(version);
    let ruleset = create(version, Ruleset { files, net: 0, scoped })?;
    let root: OwnedFd = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    add_path(&ruleset, &root, files)?;
    restrict(version, &ruleset)?;
    Ok(Some(version))
}
