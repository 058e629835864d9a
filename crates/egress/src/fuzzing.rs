//! What the fuzz targets call: packets of a TUN device, first bytes of connections, DNS messages.
//! Each function panics when a property is violated.

use std::net::{IpAddr, SocketAddr};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RData;
use rustls::server::Acceptor;

use crate::packet::{MAX_UDP_HEADERS, PacketContent, Unreachable, VNET};
use crate::sniff::{self, Kind, Sniffed};
use crate::{GATEWAY_V4, GATEWAY_V6, SANDBOX_V4, SANDBOX_V6, answers, dns, packet, questions};

/// A frame of a TUN device: what it parses to lies in the frame, and what answers it is a packet.
///
/// # Panics
/// When a property is violated.
pub fn check_packet(frame: &[u8]) {
    let Some(parsed) = packet::parse(frame) else { return };
    assert_eq!(parsed.source.is_ipv4(), parsed.destination.is_ipv4());
    let (gateway, sandbox): (IpAddr, IpAddr) = if parsed.source.is_ipv4() {
        (GATEWAY_V4.into(), SANDBOX_V4.into())
    } else {
        (GATEWAY_V6.into(), SANDBOX_V6.into())
    };
    match &parsed.content {
        PacketContent::Tcp(segment) => {
            assert_eq!((segment.source.ip(), segment.destination.ip()), (parsed.source, parsed.destination));
            let (from, to) = (SocketAddr::new(gateway, 1234), SocketAddr::new(sandbox, 80));
            let mut moved = frame.to_vec();
            packet::readdress(&mut moved, from, to);
            let again = packet::parse(&moved).expect("a readdressed packet is a packet");
            let PacketContent::Tcp(again) = again.content else { panic!("a readdressed segment is {again:?}") };
            let mut expected = *segment;
            (expected.source, expected.destination) = (from, to);
            assert_eq!(again, expected);
            if let Some(reset) = packet::reset(segment) {
                let reset = packet::parse(&reset).expect("a reset is a packet");
                let PacketContent::Tcp(reset) = reset.content else { panic!("a reset is {reset:?}") };
                assert_eq!((reset.source, reset.destination), (segment.destination, segment.source));
                assert!(reset.flags.resets() && packet::reset(&reset).is_none(), "no reset answers a reset");
            }
        }
        PacketContent::Udp(datagram) => {
            let payload = &frame[datagram.payload.clone()];
            assert_eq!(datagram.payload.end, frame.len());
            let mut buffer = vec![0; MAX_UDP_HEADERS];
            buffer.extend_from_slice(payload);
            let (source, destination) = (datagram.source, datagram.destination);
            let made = packet::udp(&mut buffer, payload.len(), source, destination).expect("it came in a packet");
            let made = &buffer[made];
            let again = packet::parse(made).expect("a datagram is a packet");
            let PacketContent::Udp(again) = again.content else { panic!("a datagram is {again:?}") };
            assert_eq!((again.source, again.destination), (source, destination));
            assert_eq!(&made[again.payload], payload);
        }
        PacketContent::Echo | PacketContent::Other => {}
    }
    for why in [Unreachable::Network, Unreachable::Host, Unreachable::Port, Unreachable::Prohibited] {
        if let Some(refusal) = packet::unreachable(&frame[VNET..], gateway, why) {
            let refusal = packet::parse(&refusal).expect("a refusal is a packet");
            assert_eq!((refusal.source, refusal.destination), (gateway, parsed.source));
            assert_eq!(refusal.content, PacketContent::Other);
        }
    }
}

/// The first bytes of a connection: the result does not depend on how they arrive, and a TLS server
/// reads no other name from them.
///
/// # Panics
/// When a property is violated.
pub fn check_first_bytes(bytes: &[u8]) {
    let whole = sniff::read(bytes);
    sniff::is_quic(bytes);
    let kind = sniff::kind(bytes);
    // Every cut of short inputs, 64 cuts of long ones.
    for end in (0..bytes.len()).step_by(bytes.len() / 64 + 1) {
        let before = sniff::read(&bytes[..end]);
        assert!(before == Sniffed::Unfinished || before == whole, "{before:?} after {end} bytes, then {whole:?}");
    }
    if whole == Sniffed::Unfinished {
        return;
    }
    if let Some(name) = server_name(bytes) {
        assert_eq!(kind, Kind::Tls);
        match &whole {
            Sniffed::Name(found) => assert_eq!(found.trim_end_matches('.').to_ascii_lowercase(), name),
            Sniffed::Unclear => {}
            other => panic!("a TLS server reads {name}, and this reads {other:?}"),
        }
    }
}

/// The server name that rustls reads from the first bytes of a connection.
fn server_name(mut bytes: &[u8]) -> Option<String> {
    let mut acceptor = Acceptor::default();
    while acceptor.read_tls(&mut bytes).ok()? != 0 {
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(accepted.client_hello().server_name()?.trim_end_matches('.').to_ascii_lowercase());
        }
    }
    None
}

/// A DNS message: as a query it is refused in form, as an answer it loses all refused addresses.
///
/// # Panics
/// When a property is violated.
pub fn check_dns(bytes: &[u8]) {
    if let Some(refusal) = dns::failure(bytes, ResponseCode::Refused) {
        let refusal = Message::from_vec(&refusal).expect("a refusal is a message");
        assert_eq!(refusal.metadata.id.to_be_bytes()[..], bytes[..2]);
    }
    let Some(mut message) = dns::parse(bytes) else { return };
    for query in &message.queries {
        let name = query.name().to_lowercase().to_ascii();
        questions::subject(name.strip_suffix('.').unwrap_or(&name), query);
    }
    let refused = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_private() || address.is_loopback(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local(),
    };
    if !answers::filter(&mut message, |mention| !refused(mention.address)) {
        return;
    }
    let Ok(bytes) = message.to_vec() else { return };
    let again = Message::from_vec(&bytes).expect("a filtered answer is a message");
    for record in again.all_sections() {
        match &record.data {
            RData::A(address) => assert!(!refused(address.0.into()), "{record}"),
            RData::AAAA(address) => assert!(!refused(address.0.into()), "{record}"),
            _ => {}
        }
    }
}
