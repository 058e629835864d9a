//! Descriptors that the server passes through the launcher to the guest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::fcntl_dupfd_cloexec;

/// The descriptors that come with a [`BootSpec`](crate::spec::BootSpec), in this order.
pub(crate) struct GuestDescriptors {
    /// Unix listener that becomes the guest's descriptor 3.
    pub(crate) listener: OwnedFd,
    /// The guest executable.
    pub(crate) guest: OwnedFd,
    /// The guest's configuration, which becomes its descriptor 4.
    pub(crate) config: OwnedFd,
}

impl GuestDescriptors {
    /// Duplicates them above the numbers that the guest's own descriptors get.
    pub(crate) fn from_descriptors(descriptors: &[OwnedFd]) -> io::Result<Self> {
        let lifted = descriptors.iter().map(lift).collect::<io::Result<Vec<_>>>()?;
        let [listener, guest, config] = <[OwnedFd; 3]>::try_from(lifted)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "expected three descriptors"))?;
        Ok(Self { listener, guest, config })
    }
}

/// Duplicates a descriptor to a number of at least 16, clear of those that
/// [`place_descriptor`](crate::sys::process::place_descriptor) assigns.
pub(crate) fn lift(descriptor: impl AsFd) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(descriptor, 16)?)
}
