//! The part of a disk that stays free. User and sandbox data never fill it, because databases,
//! journals and other sandboxes need some space to continue.

use std::io;
use std::path::Path;

/// Reserve on a large disk.
pub const RESERVE_BYTES: u64 = 1 << 30;
/// Reserve on a small disk: one part in this many.
const RESERVED_PART: u64 = 20;

/// How many bytes the file system of `path` accepts before the reserve is touched.
///
/// # Errors
/// The error of `statvfs`.
pub fn writable_bytes(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    let (free, all) = (disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize));
    Ok(free.saturating_sub(RESERVE_BYTES.min(all / RESERVED_PART)))
}
