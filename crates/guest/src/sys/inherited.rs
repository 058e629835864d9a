//! Descriptors that the guest is born with.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes ownership of an inherited descriptor and keeps it from every process the guest will start.
///
/// Call it once per number, first thing in `main`, before anything could have opened a descriptor of that number.
pub fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with F_SETFD takes no pointer; a number that is not open gives EBADF.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl just proved it open, and by this function's contract nobody else owns the number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
