//! Descriptors polled by the runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers a non-blocking descriptor with the runtime.
pub(crate) fn watch_readiness(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open descriptor while it lives, and AsyncFd owns it until
    // it has deregistered it.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}
