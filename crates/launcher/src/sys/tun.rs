//! Opens a TUN device in the calling thread's network namespace.
//!
//! Every frame read from or written to the descriptor starts with a virtio network header of ten
//! bytes, without packet information before it. The device is persistent: closing the descriptor
//! neither blocks (20 to 30 ms otherwise) nor removes the address and routes, so a restarted server
//! attaches to the device again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::interface::{check, request as request_for};

/// Packets may arrive without a checksum.
const OFFLOAD_CHECKSUM: libc::c_ulong = 0x01;
/// TCP segments over IPv4 and IPv6 may arrive larger than one segment.
const OFFLOAD_TSO: libc::c_ulong = 0x02 | 0x04;

const SET_INTERFACE: libc::Ioctl = request(202);
const SET_PERSIST: libc::Ioctl = request(203);
const SET_OFFLOAD: libc::Ioctl = request(208);

/// `_IOW('T', number, int)`, which `<linux/if_tun.h>` uses also where the argument is a value or
/// has another type.
const fn request(number: u32) -> libc::Ioctl {
    libc::_IOW::<libc::c_int>(b'T' as u32, number)
}

/// Opens the TUN device `name`, and creates it if absent. The descriptor is non-blocking and
/// close-on-exec.
///
/// # Errors
/// `ResourceBusy` while another descriptor is attached to the device; `InvalidInput` for an empty
/// or too long name.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    let mut interface = request_for(name)?;
    interface.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the descriptor is open, and `interface` is a whole ifreq with a terminated name that
    // outlives the call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), SET_INTERFACE, &raw mut interface) })?;
    // SAFETY: the descriptor is open, and the argument is a plain number.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), SET_OFFLOAD, OFFLOAD_CHECKSUM | OFFLOAD_TSO) })?;
    // SAFETY: the descriptor is open, and the argument is a plain number.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), SET_PERSIST, 1 as libc::c_ulong) })?;
    Ok(tun)
}
