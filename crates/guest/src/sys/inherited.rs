//! Inherited descriptors.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes ownership of an inherited descriptor and sets close-on-exec.
///
/// Call it once per number, first in `main`, before anything could have opened that number.
///
/// # Errors
/// `EBADF` when the descriptor is not open.
pub fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with F_SETFD takes no pointer; a number that is not open gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl just proved it open, and by this function's contract no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
