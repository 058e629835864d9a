//! IP packets of a TUN device: parsed, readdressed, and created.
//!
//! A frame is a virtio network header of [`VNET`] bytes followed by an IP packet. Everything that a
//! sandbox sends is hostile: nothing is read before its bounds are checked, and what is not a
//! whole, unfragmented TCP, UDP or ICMP packet without IP options is [`PacketContent::Other`].
//! Transport checksums are left to the kernel ("partial"), so payloads are never summed here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

/// Length of the virtio network header before each packet.
pub(crate) const VNET: usize = 10;
/// Longest frame: the header and the largest packet of IP.
pub(crate) const MAX_FRAME: usize = VNET + 65_535;
/// Bytes that [`udp`] needs before a payload.
pub(crate) const MAX_UDP_HEADERS: usize = VNET + IPV6 + UDP;

const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const UDP: usize = 8;
const HOPS: u8 = 64;

const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_ICMPV6: u8 = 58;

/// The kernel completes the checksum, where it needs one.
const NEEDS_CHECKSUM: u8 = 1;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) content: PacketContent,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PacketContent {
    Tcp(Segment),
    Udp(Datagram),
    /// A request of `ping`.
    Echo,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) flags: Flags,
    pub(crate) sequence: u32,
    acknowledgement: u32,
    /// Payload bytes, and one for each of SYN and FIN.
    length: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// The range of the payload in the frame.
    pub(crate) payload: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    const FIN: u8 = 0x01;
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;

    /// Whether this is the first packet of a connection.
    pub(crate) fn opens(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST | Self::FIN) == Self::SYN
    }

    pub(crate) fn resets(self) -> bool {
        self.0 & Self::RST != 0
    }
}

/// Why a packet is not delivered, in the terms of ICMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    Network,
    Host,
    Port,
    Prohibited,
}

/// Parses the headers of a frame; `None` when it is not a whole IP packet.
pub(crate) fn parse(frame: &[u8]) -> Option<Packet> {
    let packet = frame.get(VNET..)?;
    let (source, destination, protocol, headers) = match packet.first()? >> 4 {
        4 => parse_v4(packet)?,
        6 => parse_v6(packet)?,
        _ => return None,
    };
    let other = Packet { source, destination, content: PacketContent::Other };
    let Some(protocol) = protocol else { return Some(other) };
    let transport = packet.get(headers..)?;
    let content = match protocol {
        PROTOCOL_TCP => parse_tcp(source, destination, transport).map(PacketContent::Tcp),
        PROTOCOL_UDP => parse_udp(source, destination, transport, VNET + headers).map(PacketContent::Udp),
        PROTOCOL_ICMP if source.is_ipv4() && transport.first() == Some(&8) => Some(PacketContent::Echo),
        PROTOCOL_ICMPV6 if source.is_ipv6() && transport.first() == Some(&128) => Some(PacketContent::Echo),
        _ => None,
    };
    Some(content.map_or(other, |content| Packet { source, destination, content }))
}

type IpHeader = (IpAddr, IpAddr, Option<u8>, usize);

fn parse_v4(packet: &[u8]) -> Option<IpHeader> {
    let header = packet.first_chunk::<IPV4>()?;
    if usize::from(u16::from_be_bytes([header[2], header[3]])) != packet.len() {
        return None;
    }
    let plain = header[0] == 0x45;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
    let destination = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
    let protocol = (plain && !fragment).then_some(header[9]);
    Some((source.into(), destination.into(), protocol, IPV4))
}

fn parse_v6(packet: &[u8]) -> Option<IpHeader> {
    let header = packet.first_chunk::<IPV6>()?;
    if usize::from(u16::from_be_bytes([header[4], header[5]])) + IPV6 != packet.len() {
        return None;
    }
    let source = Ipv6Addr::from(*header[8..].first_chunk::<16>()?);
    let destination = Ipv6Addr::from(*header[24..].first_chunk::<16>()?);
    Some((source.into(), destination.into(), Some(header[6]), IPV6))
}

fn parse_tcp(source: IpAddr, destination: IpAddr, transport: &[u8]) -> Option<Segment> {
    let header = transport.first_chunk::<TCP>()?;
    let offset = usize::from(header[12] >> 4) * 4;
    if offset < TCP {
        return None;
    }
    let payload = transport.len().checked_sub(offset)?;
    let flags = Flags(header[13]);
    let markers = (flags.0 & Flags::SYN != 0) as u32 + (flags.0 & Flags::FIN != 0) as u32;
    Some(Segment {
        source: SocketAddr::new(source, u16::from_be_bytes([header[0], header[1]])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([header[2], header[3]])),
        flags,
        sequence: u32::from_be_bytes(*header[4..].first_chunk()?),
        acknowledgement: u32::from_be_bytes(*header[8..].first_chunk()?),
        length: payload as u32 + markers,
    })
}

fn parse_udp(source: IpAddr, destination: IpAddr, transport: &[u8], start: usize) -> Option<Datagram> {
    let header = transport.first_chunk::<UDP>()?;
    if usize::from(u16::from_be_bytes([header[4], header[5]])) != transport.len() {
        return None;
    }
    Some(Datagram {
        source: SocketAddr::new(source, u16::from_be_bytes([header[0], header[1]])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([header[2], header[3]])),
        payload: start + UDP..start + transport.len(),
    })
}

/// Replaces the ends of a frame that [`parse`] returned as TCP, by ends of the same family.
pub(crate) fn readdress(frame: &mut [u8], source: SocketAddr, destination: SocketAddr) {
    let packet = &mut frame[VNET..];
    let headers = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet[12..16].copy_from_slice(&source.octets());
            packet[16..20].copy_from_slice(&destination.octets());
            checksum_v4_header(packet);
            IPV4
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet[8..24].copy_from_slice(&source.octets());
            packet[24..40].copy_from_slice(&destination.octets());
            IPV6
        }
        _ => unreachable!("both ends of a connection have the same family"),
    };
    let transport = &mut packet[headers..];
    transport[0..2].copy_from_slice(&source.port().to_be_bytes());
    transport[2..4].copy_from_slice(&destination.port().to_be_bytes());
    leave_checksum_to_kernel(frame, PROTOCOL_TCP);
}

/// The reset that answers a TCP segment, as from a machine without such a connection. A reset
/// itself is not answered.
pub(crate) fn reset(segment: &Segment) -> Option<Vec<u8>> {
    if segment.flags.resets() {
        return None;
    }
    let (sequence, acknowledgement, flags) = if segment.flags.0 & Flags::ACK != 0 {
        (segment.acknowledgement, 0, Flags::RST)
    } else {
        (0, segment.sequence.wrapping_add(segment.length), Flags::RST | Flags::ACK)
    };
    let (mut frame, headers) = ip_frame(segment.destination.ip(), segment.source.ip(), PROTOCOL_TCP, TCP);
    let transport = &mut frame[headers..];
    transport[0..2].copy_from_slice(&segment.destination.port().to_be_bytes());
    transport[2..4].copy_from_slice(&segment.source.port().to_be_bytes());
    transport[4..8].copy_from_slice(&sequence.to_be_bytes());
    transport[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    transport[12] = ((TCP / 4) << 4) as u8;
    transport[13] = flags;
    leave_checksum_to_kernel(&mut frame, PROTOCOL_TCP);
    Some(frame)
}

/// Writes the headers of a UDP datagram directly before its payload, which starts at
/// [`MAX_UDP_HEADERS`] in `buffer`. Returns the range of the frame; `None` if the payload does not
/// fit into one packet.
pub(crate) fn udp(
    buffer: &mut [u8],
    payload: usize,
    source: SocketAddr,
    destination: SocketAddr,
) -> Option<Range<usize>> {
    let ip = if source.is_ipv4() { IPV4 } else { IPV6 };
    let start = MAX_UDP_HEADERS - UDP - ip - VNET;
    let end = MAX_UDP_HEADERS + payload;
    if ip + UDP + payload > MAX_FRAME - VNET {
        return None;
    }
    let frame = buffer.get_mut(start..end)?;
    frame[..VNET].fill(0);
    ip_header(&mut frame[VNET..], source.ip(), destination.ip(), PROTOCOL_UDP);
    let transport = &mut frame[VNET + ip..];
    transport[0..2].copy_from_slice(&source.port().to_be_bytes());
    transport[2..4].copy_from_slice(&destination.port().to_be_bytes());
    transport[4..6].copy_from_slice(&((UDP + payload) as u16).to_be_bytes());
    leave_checksum_to_kernel(frame, PROTOCOL_UDP);
    Some(start..end)
}

/// The ICMP message to the sender of `original` (an IP packet, of which the headers suffice) that
/// it was not delivered.
pub(crate) fn unreachable(original: &[u8], from: IpAddr, why: Unreachable) -> Option<Vec<u8>> {
    let (source, _, _, headers) = match original.first()? >> 4 {
        4 => (IpAddr::V4(Ipv4Addr::from(*original.get(12..)?.first_chunk::<4>()?)), (), (), IPV4),
        6 => (IpAddr::V6(Ipv6Addr::from(*original.get(8..)?.first_chunk::<16>()?)), (), (), IPV6),
        _ => return None,
    };
    // The sender finds its socket by the ports, and a TCP sender checks the sequence number after
    // them.
    let quoted = original.get(..headers + 8)?;
    let (kind, code, protocol) = match (source.is_ipv4(), why) {
        (true, Unreachable::Network) => (3, 0, PROTOCOL_ICMP),
        (true, Unreachable::Host) => (3, 1, PROTOCOL_ICMP),
        (true, Unreachable::Port) => (3, 3, PROTOCOL_ICMP),
        (true, Unreachable::Prohibited) => (3, 13, PROTOCOL_ICMP),
        (false, Unreachable::Network) => (1, 0, PROTOCOL_ICMPV6),
        (false, Unreachable::Host) => (1, 3, PROTOCOL_ICMPV6),
        (false, Unreachable::Port) => (1, 4, PROTOCOL_ICMPV6),
        (false, Unreachable::Prohibited) => (1, 1, PROTOCOL_ICMPV6),
    };
    let (mut frame, start) = ip_frame(from, source, protocol, 8 + quoted.len());
    let message = &mut frame[start..];
    message[0] = kind;
    message[1] = code;
    message[8..].copy_from_slice(quoted);
    let seed = if source.is_ipv4() { 0 } else { pseudo_header(from, source, protocol, message.len()) };
    let sum = !fold(sum(message, seed));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(frame)
}

/// The headers of a datagram that was sent earlier, for [`unreachable`] to quote.
pub(crate) fn udp_headers(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut buffer = vec![0; MAX_UDP_HEADERS];
    let frame = udp(&mut buffer, 0, source, destination).expect("an empty datagram fits");
    buffer[frame.start + VNET..].to_vec()
}

/// An empty frame with its IP header; returns where the transport header starts.
fn ip_frame(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> (Vec<u8>, usize) {
    let headers = VNET + if source.is_ipv4() { IPV4 } else { IPV6 };
    let mut frame = vec![0; headers + length];
    ip_header(&mut frame[VNET..], source, destination, protocol);
    (frame, headers)
}

/// Writes the IP header of a packet that fills `packet`.
fn ip_header(packet: &mut [u8], source: IpAddr, destination: IpAddr, protocol: u8) {
    let length = packet.len();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet[..IPV4].fill(0);
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            packet[8] = HOPS;
            packet[9] = protocol;
            packet[12..16].copy_from_slice(&source.octets());
            packet[16..20].copy_from_slice(&destination.octets());
            checksum_v4_header(packet);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet[..IPV6].fill(0);
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&((length - IPV6) as u16).to_be_bytes());
            packet[6] = protocol;
            packet[7] = HOPS;
            packet[8..24].copy_from_slice(&source.octets());
            packet[24..40].copy_from_slice(&destination.octets());
        }
        _ => unreachable!("both ends of a packet have the same family"),
    }
}

fn checksum_v4_header(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = !fold(sum(&packet[..IPV4], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Marks the frame so that the kernel accepts it without a transport checksum, or completes that if
/// the packet leaves the machine.
fn leave_checksum_to_kernel(frame: &mut [u8], protocol: u8) {
    let packet = &mut frame[VNET..];
    let v4 = packet[0] >> 4 == 4;
    let headers = if v4 { IPV4 } else { IPV6 };
    let addresses = if v4 { 12..20 } else { 8..40 };
    let length = (packet.len() - headers) as u32;
    let seed = sum(&packet[addresses], u64::from(protocol) + u64::from(length));
    let place: usize = if protocol == PROTOCOL_TCP { 16 } else { 6 };
    packet[headers + place..headers + place + 2].copy_from_slice(&fold(seed).to_be_bytes());
    frame[0] = NEEDS_CHECKSUM;
    frame[6..8].copy_from_slice(&(headers as u16).to_ne_bytes());
    frame[8..10].copy_from_slice(&(place as u16).to_ne_bytes());
}

fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u64 {
    let seed = u64::from(protocol) + length as u64;
    [source, destination].into_iter().fold(seed, |seed, address| match address {
        IpAddr::V4(address) => sum(&address.octets(), seed),
        IpAddr::V6(address) => sum(&address.octets(), seed),
    })
}

/// Adds 16-bit words; an odd last byte is the high half of one.
fn sum(bytes: &[u8], seed: u64) -> u64 {
    bytes.chunks(2).fold(seed, |sum, pair| {
        sum + u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or_default()]))
    })
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
