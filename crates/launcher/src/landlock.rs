//! Landlock: rules about files, sockets and signals that a process gives itself and its descendants, and that nothing takes back.
//! It is the second layer behind mount and pid namespaces: what leads out of them, a descriptor of the host's that leaked for
//! example, still opens nothing.
//!
//! A rule on a process's root holds for all mounts below it. A process under rules cannot mount any more, so they come last.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};

use crate::sys::landlock::{Ruleset, add_path, create, restrict, version};

/// The thirteen rights over files of the first version, from execution to symbolic links.
const FIRST: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// Abstract unix sockets and signals.
const ALL_SCOPES: u64 = 3;

/// The version of the kernel's interface. None where it lacks Landlock, or has the first version, under which no file can be
/// moved to another directory.
fn usable_version() -> Option<u32> {
    version().ok().filter(|version| *version >= 2)
}

/// Every right over files that this version knows.
fn all_files(version: u32) -> u64 {
    let later = [(2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)];
    later.iter().filter(|(since, _)| version >= *since).fold(FIRST, |all, (_, right)| all | right)
}

/// Leaves this process and its descendants all of what is below `root` and nothing beside, and neither abstract sockets nor
/// signals of others. The version that is used; none where the kernel has no usable one.
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
