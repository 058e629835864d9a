//! Finds which parts of a file have blocks on the disk.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const FIEMAP: libc::c_ulong = 0xC020_660B;
/// Flag of the last extent of the file.
const LAST: u32 = 1;
const EXTENTS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

const BLANK: Extent = Extent { logical: 0, physical: 0, length: 0, reserved: [0; 2], flags: 0, reserved_more: [0; 3] };
const _: () = assert!(size_of::<Extent>() == 56 && size_of::<Map>() == 32 + EXTENTS * 56);

/// Whether every byte of the range has a block, written or only allocated.
pub(crate) fn is_allocated(file: &File, start: u64, length: u64) -> rustix::io::Result<bool> {
    let (mut at, end) = (start, start + length);
    while at < end {
        let mut map = Map {
            start: at,
            length: end - at,
            flags: 0,
            mapped: 0,
            count: EXTENTS as u32,
            reserved: 0,
            extents: [BLANK; EXTENTS],
        };
        // SAFETY: FS_IOC_FIEMAP takes `struct fiemap` with room for `count` extents behind it,
        // which `Map` is.
        if unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP as _, std::ptr::from_mut(&mut map)) } == -1 {
            return Err(rustix::io::Errno::from_io_error(&io::Error::last_os_error()).expect("a call sets errno"));
        }
        let found = &map.extents[..(map.mapped as usize).min(EXTENTS)];
        if found.is_empty() {
            return Ok(false);
        }
        for extent in found {
            if extent.logical > at {
                return Ok(false);
            }
            at = at.max(extent.logical + extent.length);
        }
        if at < end && found.iter().any(|extent| extent.flags & LAST != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};

    #[test]
    fn holes_are_distinguished_from_allocated_blocks() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64 * MIB).expect("a sparse file");
        assert!(!is_allocated(&file, 0, MIB).expect("the file system knows"));
        fallocate(&file, FallocateFlags::KEEP_SIZE, 8 * MIB, 8 * MIB).expect("space");
        assert!(is_allocated(&file, 8 * MIB, 8 * MIB).expect("the file system knows"));
        assert!(!is_allocated(&file, 8 * MIB, 9 * MIB).expect("the file system knows"));
        assert!(!is_allocated(&file, 7 * MIB, 2 * MIB).expect("the file system knows"));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 10 * MIB, 4096).expect("a hole");
        assert!(!is_allocated(&file, 8 * MIB, 8 * MIB).expect("the file system knows"));
        assert!(is_allocated(&file, 8 * MIB, 2 * MIB).expect("the file system knows"));
    }
}
