//! Packets created here are whole and have correct checksums; any packet is parsed without harm.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const V4: [&str; 2] = ["192.0.0.2:40000", "198.51.100.7:443"];
const V6: [&str; 2] = ["[fd73::2]:40000", "[2001:db8::7]:443"];

fn ends(texts: [&str; 2]) -> (SocketAddr, SocketAddr) {
    (texts[0].parse().unwrap(), texts[1].parse().unwrap())
}

fn tcp_frame(source: SocketAddr, destination: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    let (mut frame, headers) = ip_frame(source.ip(), destination.ip(), PROTOCOL_TCP, TCP + payload.len());
    let transport = &mut frame[headers..];
    transport[0..2].copy_from_slice(&source.port().to_be_bytes());
    transport[2..4].copy_from_slice(&destination.port().to_be_bytes());
    transport[4..8].copy_from_slice(&1000_u32.to_be_bytes());
    transport[8..12].copy_from_slice(&5000_u32.to_be_bytes());
    transport[12] = 0x50;
    transport[13] = flags;
    transport[TCP..].copy_from_slice(payload);
    frame
}

fn udp_frame(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; MAX_UDP_HEADERS];
    buffer.extend(payload);
    let frame = udp(&mut buffer, payload.len(), source, destination).unwrap();
    buffer[frame].to_vec()
}

fn segment(frame: &[u8]) -> Segment {
    match parse(frame) {
        Some(Packet { content: PacketContent::Tcp(segment), .. }) => segment,
        other => panic!("no TCP packet: {other:?}"),
    }
}

/// Completes the checksum as the kernel does, then checks all sums of the packet as a receiver
/// does.
#[track_caller]
fn assert_sums(frame: &[u8]) {
    let mut frame = frame.to_vec();
    if frame[0] & NEEDS_CHECKSUM != 0 {
        let start = VNET + usize::from(u16::from_ne_bytes([frame[6], frame[7]]));
        let place = start + usize::from(u16::from_ne_bytes([frame[8], frame[9]]));
        let sum = !fold(sum(&frame[start..], 0));
        frame[place..place + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let packet = &frame[VNET..];
    let (source, destination, protocol, headers) =
        if packet[0] >> 4 == 4 { parse_v4(packet).unwrap() } else { parse_v6(packet).unwrap() };
    if source.is_ipv4() {
        assert_eq!(fold(sum(&packet[..IPV4], 0)), 0xffff, "header sum");
    }
    let protocol = protocol.unwrap();
    let transport = &packet[headers..];
    let seed =
        if protocol == PROTOCOL_ICMP { 0 } else { pseudo_header(source, destination, protocol, transport.len()) };
    assert_eq!(fold(sum(transport, seed)), 0xffff, "transport sum");
}

#[test]
fn a_readdressed_segment_keeps_its_content_and_has_new_sums() {
    for (texts, other) in [(V4, ["192.0.0.1:2048", "192.0.0.2:33333"]), (V6, ["[fd73::1]:2048", "[fd73::2]:33333"])] {
        let (source, destination) = ends(texts);
        let mut frame = tcp_frame(source, destination, Flags::ACK, b"odd");
        assert_eq!(segment(&frame).source, source);
        assert_eq!(segment(&frame).destination, destination);
        let (new_source, new_destination) = ends(other);
        readdress(&mut frame, new_source, new_destination);
        let after = segment(&frame);
        assert_eq!((after.source, after.destination), (new_source, new_destination));
        assert_eq!((after.sequence, after.length), (1000, 3));
        assert!(frame.ends_with(b"odd"));
        assert_sums(&frame);
    }
}

#[test]
fn a_reset_answers_the_segment_it_refuses() {
    for texts in [V4, V6] {
        let (source, destination) = ends(texts);
        let syn = segment(&tcp_frame(source, destination, Flags::SYN, b""));
        assert!(syn.flags.opens());
        let frame = reset(&syn).unwrap();
        assert_sums(&frame);
        let answer = segment(&frame);
        assert_eq!((answer.source, answer.destination), (destination, source));
        assert_eq!((answer.sequence, answer.acknowledgement, answer.flags), (0, 1001, Flags(Flags::RST | Flags::ACK)));

        let later = segment(&tcp_frame(source, destination, Flags::ACK | Flags::FIN, b"abc"));
        let answer = segment(&reset(&later).unwrap());
        assert_eq!((answer.sequence, answer.acknowledgement, answer.flags), (5000, 0, Flags(Flags::RST)));
        assert_eq!(reset(&answer), None, "a reset is not answered");
    }
}

#[test]
fn datagrams_are_made_and_read_back() {
    for texts in [V4, V6] {
        let (source, destination) = ends(texts);
        for payload in [&b""[..], b"x", b"payload"] {
            let frame = udp_frame(source, destination, payload);
            assert_sums(&frame);
            let Some(Packet { content: PacketContent::Udp(datagram), .. }) = parse(&frame) else {
                panic!("no datagram")
            };
            assert_eq!((datagram.source, datagram.destination), (source, destination));
            assert_eq!(&frame[datagram.payload], payload);
        }
        let mut buffer = vec![0; MAX_UDP_HEADERS + MAX_FRAME];
        assert_eq!(udp(&mut buffer, 65_536 - 28, source, destination), None, "too long for one packet");
    }
}

#[test]
fn refusals_quote_what_they_refuse() {
    let gateways: [IpAddr; 2] = ["192.0.0.1".parse().unwrap(), "fd73::1".parse().unwrap()];
    for (texts, gateway, code) in [(V4, gateways[0], [3, 13]), (V6, gateways[1], [1, 1])] {
        let (source, destination) = ends(texts);
        let original = udp_frame(source, destination, b"refused");
        let frame = unreachable(&original[VNET..], gateway, Unreachable::Prohibited).unwrap();
        assert_sums(&frame);
        let headers = VNET + if source.is_ipv4() { IPV4 } else { IPV6 };
        assert_eq!(frame[headers..headers + 2], code);
        let quoted = &frame[headers + 8..];
        assert_eq!(quoted, &original[VNET..VNET + quoted.len()]);
        assert_eq!(udp_headers(source, destination).len(), quoted.len());
    }
}

#[test]
fn fragments_options_and_lies_about_length_are_not_followed() {
    let (source, destination) = ends(V4);
    let whole = tcp_frame(source, destination, Flags::SYN, b"");
    let other = |change: fn(&mut [u8])| {
        let mut frame = whole.clone();
        change(&mut frame[VNET..]);
        parse(&frame).map(|packet| packet.content)
    };
    assert_eq!(other(|packet| packet[6] = 0x20), Some(PacketContent::Other), "more fragments follow");
    assert_eq!(other(|packet| packet[7] = 1), Some(PacketContent::Other), "a later fragment");
    assert!(matches!(other(|packet| packet[6] = 0x40), Some(PacketContent::Tcp(_))), "not to be fragmented");
    assert_eq!(other(|packet| packet[0] = 0x46), Some(PacketContent::Other), "with options");
    assert_eq!(other(|packet| packet[3] -= 1), None, "longer than it says");
    assert_eq!(other(|packet| packet[3] += 1), None, "shorter than it says");
    assert_eq!(other(|packet| packet[0] = 0x75), None, "no such version");
    assert_eq!(other(|packet| packet[32] = 0x40), Some(PacketContent::Other), "a TCP header too short");
    assert_eq!(other(|packet| packet[32] = 0xf0), Some(PacketContent::Other), "a TCP header beyond the end");
}

/// A fixed pseudo-random sequence, so that a failure can be reproduced.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Does everything with a frame that the egress does.
fn treat(frame: &mut [u8]) {
    if let Some(packet) = frame.get(VNET..) {
        let from = if packet.first().is_some_and(|first| first >> 4 == 4) { V4[0] } else { V6[0] };
        let _ = unreachable(packet, from.parse::<SocketAddr>().unwrap().ip(), Unreachable::Host);
    }
    match parse(frame).map(|packet| packet.content) {
        Some(PacketContent::Tcp(segment)) => {
            let _ = reset(&segment);
            readdress(frame, segment.destination, segment.source);
            assert_sums(frame);
        }
        Some(PacketContent::Udp(datagram)) => {
            let _ = &frame[datagram.payload];
        }
        _ => {}
    }
}

#[test]
fn no_packet_does_harm() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let whole = [V4, V6].into_iter().flat_map(|texts| {
        let (source, destination) = ends(texts);
        [tcp_frame(source, destination, Flags::SYN, b"some payload"), udp_frame(source, destination, b"some payload")]
    });
    for original in whole {
        for length in 0..=original.len() {
            treat(&mut original[..length].to_vec());
        }
        for _ in 0..50_000 {
            let mut frame = original.clone();
            for _ in 0..=numbers.next() % 4 {
                let place = numbers.next() as usize % frame.len();
                frame[place] = numbers.next() as u8;
            }
            frame.truncate(original.len() - (numbers.next() % 8).saturating_sub(6) as usize);
            treat(&mut frame);
        }
    }
    for _ in 0..50_000 {
        let mut frame = vec![0; numbers.next() as usize % 100];
        frame.fill_with(|| numbers.next() as u8);
        treat(&mut frame);
    }
}

/// A valid frame with some bytes changed and its end cut.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let made =
        (any::<bool>(), any::<bool>(), any::<u8>(), vec(any::<u8>(), 0..100)).prop_map(|(v4, tcp, flags, payload)| {
            let (source, destination) = ends(if v4 { V4 } else { V6 });
            if tcp { tcp_frame(source, destination, flags, &payload) } else { udp_frame(source, destination, &payload) }
        });
    let damage = vec((any::<usize>(), any::<u8>()), 0..6);
    (made, damage, 0_usize..4, any::<bool>()).prop_map(|(mut frame, damage, cut, fix_length)| {
        for (at, byte) in damage {
            let at = at % frame.len();
            frame[at] = byte;
        }
        frame.truncate(frame.len() - cut);
        let length = frame.len() - VNET;
        if fix_length && frame[VNET] >> 4 == 4 {
            frame[VNET + 2..VNET + 4].copy_from_slice(&(length as u16).to_be_bytes());
        }
        frame
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(frame in prop_oneof![hostile(), vec(any::<u8>(), 0..200)]) {
        let packet = frame.get(VNET..).unwrap_or_default();
        for (from, why) in [("192.0.0.1", Unreachable::Port), ("fd73::1", Unreachable::Host)] {
            let from: IpAddr = from.parse().unwrap();
            // The caller replies from an address of the packet's own family.
            if packet.first().is_some_and(|first| (first >> 4 == 4) == from.is_ipv4()) {
                unreachable(packet, from, why);
            }
        }
        match parse(&frame).map(|packet| packet.content) {
            Some(PacketContent::Udp(datagram)) => {
                prop_assert!(frame.get(datagram.payload).is_some(), "the payload lies in the frame");
            }
            Some(PacketContent::Tcp(segment)) => {
                if let Some(answer) = reset(&segment) {
                    assert_sums(&answer);
                }
                let mut changed = frame.clone();
                readdress(&mut changed, segment.destination, segment.source);
                prop_assert_eq!(parse(&changed).map(|packet| packet.source), Some(segment.destination.ip()));
            }
            Some(PacketContent::Echo | PacketContent::Other) | None => {}
        }
    }
}
