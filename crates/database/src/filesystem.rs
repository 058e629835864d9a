//! Why a file system refuses a change, as a sentence that names it and says what to do.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;

/// Below this a file system counts as full. A database takes it in one large transaction; above it,
/// a refusal would only alternate with a change that happens to fit.
pub(crate) const LEAST_FREE_BYTES: u64 = 1 << 20;

/// What a file system has left.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Room {
    Free,
    NoBytes { free: u64 },
    NoInodes,
    ReadOnly,
}

/// What the file system of `path` has left for this process: root may take the reserved blocks, too.
pub(crate) fn room(path: &Path) -> Room {
    let Ok(found) = statvfs(existing(path)) else { return Room::Free };
    let blocks = if rustix::process::geteuid().is_root() { found.f_bfree } else { found.f_bavail };
    let free = blocks.saturating_mul(found.f_frsize);
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Room::ReadOnly
    // File systems without a table of inodes (btrfs) report none at all.
    } else if found.f_files > 0 && found.f_favail == 0 {
        Room::NoInodes
    } else if free < LEAST_FREE_BYTES {
        Room::NoBytes { free }
    } else {
        Room::Free
    }
}

/// What kept `path` from being made or written, and what to do about it.
pub fn explain(path: &Path, error: &io::Error) -> String {
    let mount = mount_point(path).display().to_string();
    let shown = path.display();
    match (error.raw_os_error().map(Errno::from_raw_os_error), room(path)) {
        (Some(Errno::NOSPC | Errno::DQUOT), room) => format!("{shown} cannot be written: {}", full(&mount, room)),
        (Some(Errno::ROFS), _) => format!(
            "{shown} cannot be written: the file system at {mount} is read-only; `mount -o remount,rw {mount}`, or choose another \
             directory"
        ),
        (Some(Errno::ACCESS | Errno::PERM), _) => format!(
            "{shown} cannot be written: permission denied; give its directory to the user who runs this program, or choose another"
        ),
        (Some(Errno::IO), _) => format!("{shown} cannot be read or written: {}", broken(&mount, error)),
        _ => format!("{shown} cannot be written: {error}"),
    }
}

pub(crate) fn full(mount: &str, room: Room) -> String {
    match room {
        Room::NoInodes => {
            format!("the file system at {mount} has no free inodes; remove files there (`df -i {mount}`)")
        }
        Room::NoBytes { free } => {
            format!("the file system at {mount} is full ({free} bytes free); free space there (`df -h {mount}`)")
        }
        Room::ReadOnly => format!("the file system at {mount} is read-only; `mount -o remount,rw {mount}`"),
        Room::Free => {
            format!("the file system at {mount} is full, or a quota is used up; free space there (`df -h {mount}`)")
        }
    }
}

pub(crate) fn broken(mount: &str, error: &dyn std::fmt::Display) -> String {
    format!("the device of the file system at {mount} failed ({error}); `dmesg` names the device")
}

/// Where the file system of `path` is mounted: the highest directory on the same device.
pub(crate) fn mount_point(path: &Path) -> PathBuf {
    let start = existing(path);
    let start = start.canonicalize().unwrap_or(start);
    let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
    let home = device(&start);
    let same = start.ancestors().take_while(|above| device(above) == home);
    same.last().unwrap_or(Path::new("/")).to_owned()
}

/// The nearest ancestor that is there; `path` itself if it is.
fn existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|above| above.exists() && !above.as_os_str().is_empty());
    found.unwrap_or(Path::new(".")).to_owned()
}
