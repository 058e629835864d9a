//! `tun0`, the only device of a sandbox besides loopback: configured inside the namespace, served
//! from outside it.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};

use crate::namespace::inside;
use crate::netlink::{DeviceAddress, Netlink, end_connections};
use crate::sys::readable;
use crate::{GATEWAY_V4, GATEWAY_V6, PREFIX_V4, PREFIX_V6, SANDBOX_V4, SANDBOX_V6};

const NAME: &str = "tun0";
/// A packet costs the same whatever its length, and the longest datagram must fit into one.
const MTU: u32 = 65_535;
/// Connections of the sandbox that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// An [`Egress`](crate::Egress) that was just dropped closes its descriptor when its task next
/// runs.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The device of a sandbox, as the descriptors that are used outside its namespace. Nothing serves
/// it until it is passed to [`Egress::serve`](crate::Egress::serve).
#[derive(Debug)]
pub struct Device {
    pub(crate) tun: OwnedFd,
    /// Where the sandbox's kernel terminates TCP.
    pub(crate) listener_v4: TcpListener,
    /// Absent where the kernel has no IPv6.
    pub(crate) listener_v6: Option<TcpListener>,
}

impl Device {
    /// Creates the device in the network namespace `netns` or attaches to the existing one, and
    /// configures it completely.
    ///
    /// Blocks for about a millisecond, or up to two seconds while an
    /// [`Egress`](crate::Egress) of the sandbox is being dropped.
    ///
    /// # Errors
    /// The kernel's, when no TUN device can be created or this process lacks the capability.
    pub fn set_up(netns: BorrowedFd<'_>) -> io::Result<Self> {
        set_up(netns)
    }
}

fn set_up(netns: BorrowedFd<'_>) -> io::Result<Device> {
    inside(netns, || {
        let mut netlink = Netlink::open()?;
        let left_behind = netlink.index(NAME).is_ok();
        let tun = open_when_free()?;
        if left_behind {
            end_leftovers();
        }
        let index = netlink.index(NAME)?;
        netlink.set_up(index, Some(MTU))?;
        let v4 = DeviceAddress { address: SANDBOX_V4.into(), prefix: PREFIX_V4, gateway: GATEWAY_V4.into() };
        netlink.configure(index, &v4)?;
        let listener_v4 = listen(SANDBOX_V4.into())?;
        let v6 = DeviceAddress { address: SANDBOX_V6.into(), prefix: PREFIX_V6, gateway: GATEWAY_V6.into() };
        let listener_v6 = netlink.configure(index, &v6).and_then(|()| listen(SANDBOX_V6.into())).ok();
        Ok(Device { tun, listener_v4, listener_v6 })
    })
}

/// Connections through an earlier attachment have lost their targets.
fn end_leftovers() {
    for address in [SANDBOX_V4.into(), SANDBOX_V6.into()] {
        if let Err(error) = end_connections(address) {
            // Programs then get a reset when they next send.
            tracing::debug!(%error, "connections from before cannot be ended");
        }
    }
}

fn open_when_free() -> io::Result<OwnedFd> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match launcher::open_tun(NAME) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            done => return done,
        }
    }
}

fn listen(address: IpAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((address, 0))?;
    // The standard library's backlog is short, and a connection that exceeds it is delayed by a
    // second.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The outer end of the device. Shared: each read and write transfers one whole frame.
pub(crate) struct Tun(AsyncFd<OwnedFd>);

impl Tun {
    pub(crate) fn new(tun: OwnedFd) -> io::Result<Self> {
        Ok(Self(readable(tun)?))
    }

    pub(crate) async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.0.readable().await
    }

    pub(crate) fn receive(&self, frame: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, frame)?)
    }

    /// Sends a frame to the sandbox's kernel. A frame that the kernel refuses is lost, as on any
    /// network.
    pub(crate) fn send(&self, frame: &[u8]) {
        if let Err(error) = rustix::io::write(&self.0, frame) {
            tracing::debug!(%error, length = frame.len(), "the sandbox's device refused a packet");
        }
    }
}
