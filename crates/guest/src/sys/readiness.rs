//! Descriptors that the runtime watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Has the runtime watch a descriptor, which must be non-blocking.
pub(crate) fn watch_readiness(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open descriptor for as long as it lives, and AsyncFd owns it until it has
    // ended the watching.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}
