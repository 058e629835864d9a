//! The states of flows, packet by packet.

use std::sync::Arc;

use super::*;
use crate::budget::{Budget, TCP_FLOW};
use crate::packet::{PacketContent, parse};

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const FRAME: usize = 70;

fn segment(client_port: u16, target_port: u16, flags: u8, sequence: u32) -> Segment {
    let mut frame = vec![0; 10 + 40];
    frame[10] = 0x45;
    frame[13] = 40;
    frame[19] = 6;
    frame[22..26].copy_from_slice(&[192, 0, 0, 2]);
    frame[26..30].copy_from_slice(&[198, 51, 100, 2]);
    frame[30..32].copy_from_slice(&client_port.to_be_bytes());
    frame[32..34].copy_from_slice(&target_port.to_be_bytes());
    frame[34..38].copy_from_slice(&sequence.to_be_bytes());
    frame[42] = 0x50;
    frame[43] = flags;
    match parse(&frame).unwrap().content {
        PacketContent::Tcp(segment) => segment,
        other => panic!("no TCP packet: {other:?}"),
    }
}

fn permit() -> Permit {
    Arc::new(Budget::new(64, 1)).account().take(TCP_FLOW).unwrap()
}

fn ready() -> State {
    State::Ready { target: Target::Resolver, since: Instant::now() }
}

fn task() -> AbortHandle {
    tokio::spawn(std::future::pending::<()>()).abort_handle()
}

fn dialling() -> State {
    State::Dialling { syn: Vec::new(), task: task() }
}

#[tokio::test]
async fn a_repeated_first_packet_does_not_dial_again() {
    let mut flows = Flows::default();
    let syn = segment(40_000, 80, SYN, 7);
    assert_eq!(flows.outbound(&syn, FRAME), Outbound::Open);
    let port = flows.open(&syn, permit(), |_, _| dialling()).unwrap();
    assert_eq!(flows.outbound(&syn, FRAME), Outbound::Ignore);
    let id = flows.by_port(port).unwrap().id;
    assert!(matches!(flows.advance(port, id, ready()), Some((State::Dialling { .. }, _))));
    assert_eq!(flows.outbound(&syn, FRAME), Outbound::Forward(port), "the listener may not have seen it");
    flows.take(port, |_, _| task());
    assert_eq!(flows.outbound(&segment(40_000, 80, ACK, 8), FRAME), Outbound::Forward(port));
    flows.advance(port, id, State::Closing);
    assert_eq!(flows.outbound(&segment(40_000, 80, ACK, 9), FRAME), Outbound::Forward(port), "the last packets");
}

#[tokio::test]
async fn the_same_ends_with_another_syn_are_another_connection() {
    for state in [dialling, ready, || State::Relaying { task: task() }] {
        let mut flows = Flows::default();
        let old = flows.open(&segment(40_000, 80, SYN, 7), permit(), |_, _| state()).unwrap();
        let again = segment(40_000, 80, SYN, 1_000_000);
        assert_eq!(flows.outbound(&again, FRAME), Outbound::Open);
        assert!(flows.by_port(old).is_none());
        let new = flows.open(&again, permit(), |_, _| ready()).unwrap();
        assert_ne!(old, new, "a port rests before it is used again");
    }
}

#[tokio::test]
async fn an_unknown_connection_is_reset_and_one_given_up_is_forgotten() {
    let mut flows = Flows::default();
    assert_eq!(flows.outbound(&segment(40_000, 80, ACK, 7), FRAME), Outbound::Reset);
    let port = flows.open(&segment(40_000, 80, SYN, 7), permit(), |_, _| ready()).unwrap();
    assert_eq!(flows.outbound(&segment(40_000, 80, RST, 8), FRAME), Outbound::Ignore);
    assert!(flows.by_port(port).is_none());
}

#[tokio::test]
async fn connections_and_dials_are_limited() {
    let mut flows = Flows::default();
    let open = |flows: &mut Flows, number: usize, state: fn() -> State| {
        let syn = segment(10_000 + number as u16, 80, SYN, 7);
        let admitted = flows.outbound(&syn, FRAME);
        if admitted == Outbound::Open {
            flows.open(&syn, permit(), |_, _| state()).unwrap();
        }
        admitted
    };
    for number in 0..MOST_DIALS {
        assert_eq!(open(&mut flows, number, dialling), Outbound::Open);
    }
    assert_eq!(open(&mut flows, MOST_DIALS, dialling), Outbound::Ignore, "the client tries again later");
    let first = flows.ports[&("192.0.0.2:10000".parse().unwrap(), "198.51.100.2:80".parse().unwrap())];
    flows.remove(first).unwrap();
    for number in MOST_DIALS..=MOST_FLOWS {
        assert_eq!(open(&mut flows, number, ready), Outbound::Open);
    }
    assert_eq!(open(&mut flows, MOST_FLOWS + 1, ready), Outbound::Reset);
    // One that has ended no longer counts, although its last packets are still forwarded.
    let port = *flows.flows.iter().find(|(_, flow)| flow.is_ready()).unwrap().0;
    let id = flows.by_port(port).unwrap().id;
    flows.advance(port, id, State::Closing);
    assert_eq!(open(&mut flows, MOST_FLOWS + 1, ready), Outbound::Open);
}

#[tokio::test]
async fn flows_that_ended_or_were_never_taken_are_forgotten_in_time() {
    let mut flows = Flows::default();
    assert_eq!(flows.sweep(Instant::now()), None, "nothing to wait for");
    let untaken = flows.open(&segment(1, 80, SYN, 7), permit(), |_, _| ready()).unwrap();
    let ended = flows.open(&segment(2, 80, SYN, 7), permit(), |_, _| State::Relaying { task: task() }).unwrap();
    flows.advance(ended, flows.by_port(ended).unwrap().id, State::Closing);
    let now = Instant::now();
    assert!(flows.sweep(now).is_some());
    assert!(flows.by_port(untaken).is_some());
    assert!(flows.sweep(now + ACCEPT_TIMEOUT + Duration::from_secs(1)).is_some());
    assert!(flows.by_port(untaken).is_none());
    assert!(flows.by_port(ended).is_some());
    assert_eq!(flows.sweep(now + CLOSING_TIMEOUT + Duration::from_secs(1)), None);
    assert!(flows.by_port(ended).is_none());
}
