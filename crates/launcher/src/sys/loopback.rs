//! The loopback device of a new network namespace.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::interface::{check, request};

/// Brings up the loopback device of the calling thread's network namespace.
///
/// # Errors
/// `PermissionDenied` where the thread lacks NET_ADMIN in the user namespace that owns the network
/// namespace; never in a new namespace of its own.
pub fn bring_up_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut device = request("lo")?;
    device.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_LOOPBACK) as libc::c_short;
    // SAFETY: the socket is open, and `device` is a whole ifreq with a terminated name that
    // outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const device) })
}
