//! Explains why a file system refuses a change: names its mount point and the remedy.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{StatVfs, StatVfsMountFlags, statvfs};
use rustix::io::Errno;

/// A file or file system that refuses changes. Reads still work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} accepts no changes since {since}: {cause}", .path.display())]
pub struct Unwritable {
    /// The file, or the directory of the file system.
    pub path: PathBuf,
    /// What happened and what to do, for the operator.
    pub cause: String,
    pub since: Timestamp,
}

impl Unwritable {
    /// A fault that was found at this moment.
    pub fn now(path: &Path, cause: impl Into<String>) -> Self {
        Self { path: path.to_owned(), cause: cause.into(), since: Timestamp::now() }
    }
}

/// Below this a file system counts as full. One large transaction uses as much; a smaller threshold
/// would make the database alternate between refused and accepted changes.
const MIN_FREE_BYTES: u64 = 1 << 20;

/// Whether a file system accepts writes, and if not, which resource is exhausted.
#[derive(Debug, Clone, Copy)]
pub enum FreeSpace {
    Free,
    NoBytes { free: u64 },
    NoInodes,
    ReadOnly,
}

/// Queries the file system of `path` for this process; root may also use the reserved blocks.
pub fn free_space(path: &Path) -> FreeSpace {
    let Ok(found) = statvfs(nearest_existing(path)) else { return FreeSpace::Free };
    let blocks = if rustix::process::geteuid().is_root() { found.f_bfree } else { found.f_bavail };
    let free = blocks.saturating_mul(found.f_frsize);
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        FreeSpace::ReadOnly
    // File systems without an inode table (btrfs) report 0 inodes.
    } else if found.f_files > 0 && found.f_favail == 0 {
        FreeSpace::NoInodes
    } else if free < MIN_FREE_BYTES {
        FreeSpace::NoBytes { free }
    } else {
        FreeSpace::Free
    }
}

/// Free inodes below which a file system was out of them when it refused a change: what failed has
/// removed its incomplete files before the cause is looked for.
const FEW_INODES: u64 = 64;

/// Whether the file system of `path` lacks space or inodes or is read-only, so that it explains a
/// failure.
pub fn is_exhausted(path: &Path) -> bool {
    !matches!(free_space_after_refusal(path), FreeSpace::Free)
}

/// Queries the file system of `path` after it refused a change.
fn free_space_after_refusal(path: &Path) -> FreeSpace {
    let has_few_inodes = |found: StatVfs| found.f_files > 0 && found.f_favail < FEW_INODES;
    match free_space(path) {
        FreeSpace::Free if statvfs(nearest_existing(path)).is_ok_and(has_few_inodes) => FreeSpace::NoInodes,
        other => other,
    }
}

/// Explains what kept `path` from being created or written, and the remedy.
pub fn explain(path: &Path, error: &io::Error) -> String {
    let mount = mount_point(path).display().to_string();
    let shown = path.display();
    match (error.raw_os_error().map(Errno::from_raw_os_error), free_space_after_refusal(path)) {
        (Some(Errno::NOSPC | Errno::DQUOT), free_space) => {
            format!("{shown} cannot be written: {}", describe_full(&mount, free_space))
        }
        (Some(Errno::ROFS), _) => format!(
            "{shown} cannot be written: the file system at {mount} is read-only; `mount -o remount,rw {mount}`, or choose another \
             directory"
        ),
        (Some(Errno::ACCESS | Errno::PERM), _) => format!(
            "{shown} cannot be written: permission denied; give its directory to the user who runs this program, or choose another"
        ),
        (Some(Errno::IO), _) => format!("{shown} cannot be read or written: {}", describe_io_error(&mount, error)),
        _ => format!("{shown} cannot be written: {error}"),
    }
}

/// What to do about a full file system that holds `path`, of which its owner keeps `reserve` bytes
/// free.
pub fn explain_reserve(path: &Path, free: u64, reserve: u64) -> String {
    let mount = mount_point(path);
    let (mount, free, reserve) = (mount.display(), free >> 20, reserve >> 20);
    format!(
        "the file system at {mount} has {free} MiB free, and {reserve} MiB are kept free for the sandboxes that exist; \
         free space there (`df -h {mount}`)"
    )
}

/// A full file system and the remedy.
pub fn describe_full(mount: &str, free_space: FreeSpace) -> String {
    match free_space {
        FreeSpace::NoInodes => {
            format!("the file system at {mount} has no free inodes; remove files there (`df -i {mount}`)")
        }
        FreeSpace::NoBytes { free } => {
            format!("the file system at {mount} is full ({free} bytes free); free space there (`df -h {mount}`)")
        }
        FreeSpace::ReadOnly => format!("the file system at {mount} is read-only; `mount -o remount,rw {mount}`"),
        FreeSpace::Free => {
            format!("the file system at {mount} is full, or a quota is used up; free space there (`df -h {mount}`)")
        }
    }
}

/// A device that failed and where to look.
pub fn describe_io_error(mount: &str, error: &dyn std::fmt::Display) -> String {
    format!("the device of the file system at {mount} failed ({error}); `dmesg` names the device")
}

/// The mount point of `path`: the highest directory on the same device.
pub fn mount_point(path: &Path) -> PathBuf {
    let start = nearest_existing(path);
    let start = start.canonicalize().unwrap_or(start);
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    let home = device(&start);
    let same = start.ancestors().take_while(|above| device(above) == home);
    same.last().unwrap_or(Path::new("/")).to_owned()
}

/// The nearest existing ancestor of `path`, or `path` itself.
fn nearest_existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|above| above.exists() && !above.as_os_str().is_empty());
    found.unwrap_or(Path::new(".")).to_owned()
}
