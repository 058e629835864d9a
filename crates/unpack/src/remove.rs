//! Removing what is in the way, by descriptors: a link is removed, never followed.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::{Errno, Result};

/// No honest tree is deeper.
const DEEPEST: usize = 400;

/// Removes `name` in `parent` with all below it; absent is fine.
pub(crate) fn remove_all(parent: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    remove_below(parent, name, 0)
}

fn remove_below(parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<()> {
    if depth > DEEPEST {
        return Err(Errno::NAMETOOLONG);
    }
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
            let directory = openat(parent, name, FOLLOW_NOTHING, Mode::empty())?;
            for child in names(directory.as_fd())? {
                remove_below(directory.as_fd(), &child, depth + 1)?;
            }
            unlinkat(parent, name, AtFlags::REMOVEDIR)
        }
        Ok(_) => unlinkat(parent, name, AtFlags::empty()),
    }
}

pub(crate) const FOLLOW_NOTHING: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a directory holds.
pub(crate) fn names(directory: BorrowedFd<'_>) -> Result<Vec<std::ffi::CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push(entry.file_name().to_owned());
        }
    }
    Ok(found)
}
