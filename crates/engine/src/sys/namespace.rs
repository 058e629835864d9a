//! What a user namespace tells about itself.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `_IO(0xb7, number)` of `<linux/nsfs.h>`.
const fn request(number: u32) -> libc::Ioctl {
    libc::_IO(0xb7, number)
}

const GET_PARENT: libc::Ioctl = request(2);
const GET_OWNER: libc::Ioctl = request(4);

/// The namespace in which `namespace` was made.
pub(crate) fn parent_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open; the call takes no argument and gives a new descriptor or an error.
    let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_PARENT) };
    if parent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(parent) })
}

/// The user to whom a user namespace belongs.
pub(crate) fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<u32> {
    let mut owner: libc::uid_t = 0;
    // SAFETY: the descriptor is open, and the kernel writes one id to `owner`, which outlives the call.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER, &raw mut owner) };
    if done == 0 { Ok(owner) } else { Err(io::Error::last_os_error()) }
}
