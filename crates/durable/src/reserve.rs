//! The part of a disk that stays free: what users and sandboxes send never takes the last of it,
//! because databases, journals and the sandboxes of others need some to go on.

use std::io;
use std::path::Path;

/// Stays free, on a disk that is large.
pub const RESERVE_BYTES: u64 = 1 << 30;
/// Of a small disk this part: a twentieth.
const RESERVED_PART: u64 = 20;

/// How many bytes may be written to the file system that has `path` before the reserve is touched.
///
/// # Errors
/// When the file system cannot be asked.
pub fn writable_bytes(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    let (free, all) = (disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize));
    Ok(free.saturating_sub(RESERVE_BYTES.min(all / RESERVED_PART)))
}
