//! Reads the parent and the owner of a user namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `_IO(0xb7, number)` of `<linux/nsfs.h>`.
const fn request(number: u32) -> libc::Ioctl {
    libc::_IO(0xb7, number)
}

const GET_PARENT: libc::Ioctl = request(2);
const GET_OWNER: libc::Ioctl = request(4);

/// The namespace in which `namespace` was created.
pub(crate) fn parent_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open; the call takes no argument and returns a new descriptor or an
    // error.
    let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_PARENT) };
    if parent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created this descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(parent) })
}

/// The user that owns a user namespace.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<u32> {
    let mut owner: libc::uid_t = 0;
    // SAFETY: the descriptor is open, and the kernel writes one id to `owner`, which outlives the
    // call.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER, &raw mut owner) };
    if done == 0 { Ok(owner) } else { Err(io::Error::last_os_error()) }
}
