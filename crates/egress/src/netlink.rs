//! The few requests to the kernel's routing and diagnosis sockets that a sandbox's network needs.
//!
//! The kernel answers a request before the send returns, so the receive timeout only guards against
//! a kernel that behaves differently.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

const HEADER: usize = 16;
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// What the host would do with a packet to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Send it to a router, or by a default route into a tunnel.
    Routed,
    /// Send it to the machine with that address, which is on a link of the host.
    OnLink,
    /// Deliver it to itself, or to every neighbour.
    HostOrGroup,
    /// Refuse it.
    None,
}

/// A device's address and the default route through it.
pub(crate) struct DeviceAddress {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) gateway: IpAddr,
}

/// Ends every TCP connection of the calling thread's network namespace that has `local` as its own
/// address and another one as its peer's. Their programs get an error immediately, instead of
/// waiting for a peer that does not exist any more.
///
/// # Errors
/// Among others where the kernel was built without this ability.
pub(crate) fn end_connections(local: IpAddr) -> io::Result<()> {
    const LIST: u16 = 20;
    const DESTROY: u16 = 21;
    const EVERY_STATE: u32 = !0;
    /// Bytes before the identity in an answer: family, state, timer and retransmissions. In a
    /// request the states follow, too.
    const ANSWER: usize = 4;
    const IDENTITY: usize = 48;
    let (family, address) = octets(local);
    let request = |identity: &[u8]| {
        let mut body = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
        body.extend(EVERY_STATE.to_ne_bytes());
        body.extend(identity);
        body
    };
    let mut diagnosis = Netlink::open_protocol(Some(netlink::SOCK_DIAG))?;
    let found: Vec<Vec<u8>> = diagnosis.dump(LIST, &request(&[0; IDENTITY]), |message| {
        let identity = message.get(ANSWER..ANSWER + IDENTITY)?;
        let (own, peer) = (&identity[4..20], &identity[20..36]);
        let listens = message[1] == 10;
        (own.starts_with(&address) && !peer.starts_with(&address) && !listens).then(|| identity.to_vec())
    })?;
    for identity in found {
        match diagnosis.perform(DESTROY, 0, &request(&identity)) {
            // The connection has ended by itself.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            done => done?,
        }
    }
    Ok(())
}

pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// The socket belongs to the network namespace of the calling thread, also when another thread
    /// uses it later.
    pub(crate) fn open() -> io::Result<Self> {
        Self::open_protocol(None)
    }

    /// Without a protocol, the socket is the one for routing.
    fn open_protocol(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(REPLY_TIMEOUT))?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(crate) fn index(&self, device: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, device)?)
    }

    /// Sets a device up, with the given MTU if any.
    pub(crate) fn set_up(&mut self, index: u32, mtu: Option<u32>) -> io::Result<()> {
        let mut body = Vec::with_capacity(32);
        body.extend([libc::AF_UNSPEC as u8, 0, 0, 0]);
        body.extend(index.to_ne_bytes());
        body.extend((libc::IFF_UP as u32).to_ne_bytes());
        body.extend((libc::IFF_UP as u32).to_ne_bytes());
        if let Some(mtu) = mtu {
            attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
        }
        self.perform(libc::RTM_NEWLINK, 0, &body)
    }

    /// Sets the address of a device and makes it the default route. Existing settings are kept.
    pub(crate) fn configure(&mut self, index: u32, link: &DeviceAddress) -> io::Result<()> {
        let replace = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let (family, address) = octets(link.address);
        // No other host is on the link, so duplicate address detection would only delay the first
        // connection.
        let mut body = vec![family, link.prefix, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, libc::IFA_LOCAL, &address);
        attribute(&mut body, libc::IFA_ADDRESS, &address);
        self.perform(libc::RTM_NEWADDR, replace, &body)?;

        let mut body = vec![family, 0, 0, 0, libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RT_SCOPE_UNIVERSE];
        body.push(libc::RTN_UNICAST);
        body.extend(0_u32.to_ne_bytes());
        attribute(&mut body, libc::RTA_GATEWAY, &octets(link.gateway).1);
        attribute(&mut body, libc::RTA_OIF, &index.to_ne_bytes());
        self.perform(libc::RTM_NEWROUTE, replace, &body)
    }

    /// Every address of every device.
    pub(crate) fn addresses(&mut self) -> io::Result<HashSet<IpAddr>> {
        let body = [libc::AF_UNSPEC as u8, 0, 0, 0, 0, 0, 0, 0];
        self.dump(libc::RTM_GETADDR, &body, |message| {
            // On a point-to-point link the address is the peer's and the local one is ours.
            let local = find(message, 8, libc::IFA_LOCAL).or_else(|| find(message, 8, libc::IFA_ADDRESS));
            local.and_then(ip)
        })
    }

    /// The current route, which also covers addresses that are routed to the host without being on
    /// a device.
    pub(crate) fn route(&mut self, target: IpAddr) -> io::Result<Route> {
        let (family, address) = octets(target);
        let mut body = vec![family, address.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        attribute(&mut body, libc::RTA_DST, &address);
        self.send(libc::RTM_GETROUTE, 0, &body)?;
        loop {
            let datagram = self.receive()?;
            if let Some((kind, message)) = messages(&datagram, self.sequence).next() {
                return match (kind, message.get(7).copied()) {
                    (ERROR, _) => Ok(Route::None),
                    (_, Some(libc::RTN_UNICAST)) => match next_hop(message, target) {
                        Some(route) => Ok(route),
                        None => self.gatewayless(&mut body),
                    },
                    (_, Some(libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST)) => {
                        Ok(Route::HostOrGroup)
                    }
                    (_, _) => Ok(Route::None),
                };
            }
        }
    }

    /// Classifies a unicast route without a gateway by the entry of the routing table. The kernel
    /// returns the entry only when asked for it, so the request `body` is repeated with that flag.
    fn gatewayless(&mut self, body: &mut [u8]) -> io::Result<Route> {
        const RTM_F_FIB_MATCH: u32 = 0x2000;
        body[FLAGS..ROUTE].copy_from_slice(&RTM_F_FIB_MATCH.to_ne_bytes());
        self.send(libc::RTM_GETROUTE, 0, body)?;
        loop {
            let datagram = self.receive()?;
            if let Some((kind, message)) = messages(&datagram, self.sequence).next() {
                let default = kind != ERROR && message.get(..2).is_some_and(|fixed| is_default(fixed[0], fixed[1]));
                return Ok(if default { Route::Routed } else { Route::OnLink });
            }
        }
    }

    /// Sends a request that is answered by a list, and collects what `read` returns for its
    /// entries.
    fn dump<T, C: FromIterator<T>>(
        &mut self,
        kind: u16,
        body: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<C> {
        self.send(kind, libc::NLM_F_DUMP, body)?;
        let mut found = Vec::new();
        loop {
            let datagram = self.receive()?;
            for (kind, message) in messages(&datagram, self.sequence) {
                match kind {
                    DONE => return Ok(found.into_iter().collect()),
                    ERROR => return Err(error_of(message).unwrap_or_else(|| io::ErrorKind::InvalidData.into())),
                    _ => found.extend(read(message)),
                }
            }
        }
    }

    /// Sends a request that is answered by an acknowledgement alone.
    fn perform(&mut self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        self.send(kind, flags | libc::NLM_F_ACK, body)?;
        loop {
            let datagram = self.receive()?;
            for (kind, message) in messages(&datagram, self.sequence) {
                if kind == ERROR {
                    return error_of(message).map_or(Ok(()), Err);
                }
            }
        }
    }

    fn send(&mut self, kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend(((HEADER + body.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend(0_u32.to_ne_bytes());
        request.extend(body);
        rustix::net::sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut datagram = vec![0; 32 * 1024];
        let (length, _) = rustix::net::recv(&self.socket, datagram.as_mut_slice(), RecvFlags::empty())?;
        datagram.truncate(length);
        Ok(datagram)
    }
}

/// The length of the fixed part of a message about a route, and the offset of its flags.
const ROUTE: usize = 12;
const FLAGS: usize = 8;

/// Classifies a unicast route to `target` by its next hop; `None` where it has no gateway.
fn next_hop(message: &[u8], target: IpAddr) -> Option<Route> {
    /// A gateway of the other family.
    const RTA_VIA: u16 = 18;
    if find(message, ROUTE, RTA_VIA).is_some() {
        return Some(Route::Routed);
    }
    // A gateway that is the target itself: of an `onlink` route, or by a router's redirect.
    let gateway = find(message, ROUTE, libc::RTA_GATEWAY).and_then(ip)?;
    Some(if gateway == target { Route::OnLink } else { Route::Routed })
}

/// Whether a route without a gateway covers as much as a default route. Tunnels (WireGuard, PPP)
/// have such routes, also in the form of two halves (`0.0.0.0/1`) or of all global IPv6 addresses
/// (`2000::/3`). The hosts behind them are not neighbours.
fn is_default(family: u8, prefix: u8) -> bool {
    const WIDEST_V4: u8 = 1;
    const WIDEST_V6: u8 = 3;
    prefix <= if family == libc::AF_INET as u8 { WIDEST_V4 } else { WIDEST_V6 }
}

const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;

/// The messages of one datagram that answer the request numbered `sequence`: kind and body.
fn messages(mut datagram: &[u8], sequence: u32) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let length = u32::from_ne_bytes(*datagram.first_chunk()?) as usize;
            let (message, rest) = (datagram.get(..length)?, datagram.get(align(length)..).unwrap_or_default());
            let (header, body) = message.split_first_chunk::<HEADER>()?;
            datagram = rest;
            if header[8..12] == sequence.to_ne_bytes() {
                return Some((u16::from_ne_bytes([header[4], header[5]]), body));
            }
        }
    })
}

/// The error in an acknowledgement; `None` when it reports success.
fn error_of(message: &[u8]) -> Option<io::Error> {
    let code = i32::from_ne_bytes(*message.first_chunk()?);
    (code != 0).then(|| io::Error::from_raw_os_error(-code))
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend((value.len() as u16 + 4).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(align(body.len()), 0);
}

/// The attribute `kind` of a message whose fixed part is `fixed` bytes long.
fn find(message: &[u8], fixed: usize, kind: u16) -> Option<&[u8]> {
    let mut rest = message.get(fixed..)?;
    loop {
        let header = rest.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) == kind {
            return Some(value);
        }
        rest = rest.get(align(length)..)?;
    }
}

fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
    }
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => Some(Ipv4Addr::from(*octets.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*octets.first_chunk::<16>()?).into()),
        _ => None,
    }
}

fn align(length: usize) -> usize {
    (length + 3) & !3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_tells_routed_from_on_link() {
        let target: IpAddr = "198.51.100.7".parse().unwrap();
        let with = |attributes: &[(u16, &[u8])]| {
            let mut message = vec![0; ROUTE];
            for (kind, value) in attributes {
                attribute(&mut message, *kind, value);
            }
            next_hop(&message, target)
        };
        assert_eq!(with(&[(libc::RTA_OIF, &[1, 0, 0, 0])]), None);
        assert_eq!(with(&[(libc::RTA_GATEWAY, &[198, 51, 100, 1])]), Some(Route::Routed));
        assert_eq!(with(&[(libc::RTA_GATEWAY, &[198, 51, 100, 7])]), Some(Route::OnLink));
        assert_eq!(with(&[(18, &[10, 0, 0xfe, 0x80])]), Some(Route::Routed));
    }

    #[test]
    fn a_default_route_without_a_gateway_has_no_neighbours() {
        let (v4, v6) = (libc::AF_INET as u8, libc::AF_INET6 as u8);
        assert!(is_default(v4, 0) && is_default(v4, 1) && !is_default(v4, 2) && !is_default(v4, 24));
        assert!(is_default(v6, 0) && is_default(v6, 3) && !is_default(v6, 4) && !is_default(v6, 64));
    }
}
