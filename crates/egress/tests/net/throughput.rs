//! Bulk transfer: every byte arrives in order; the test prints the speed next to that of the bare
//! path from host to internet.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use sandbar_egress::EgressConfig;

use crate::lab::{Namespace, SERVER, World, connect};

const FLOWS: [usize; 2] = [1, 8];
/// Bytes of all flows together.
const TOTAL: usize = if cfg!(debug_assertions) { 256 << 20 } else { 2 << 30 };
const BLOCK: usize = 256 << 10;

/// A block whose content differs from flow to flow and within the block.
fn block(flow: u8) -> Vec<u8> {
    (0..BLOCK).map(|index| (index as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ flow).collect()
}

fn send(stream: &mut impl Write, flow: u8, blocks: usize) {
    let block = block(flow);
    for _ in 0..blocks {
        stream.write_all(&block).unwrap();
    }
}

fn receive(stream: &mut impl Read, flow: u8, blocks: usize) {
    let (expected, mut received) = (block(flow), vec![0; BLOCK]);
    for _ in 0..blocks {
        stream.read_exact(&mut received).unwrap();
        assert!(received == expected, "flow {flow} carried other bytes than were sent");
    }
    assert_eq!(stream.read(&mut received).unwrap(), 0, "flow {flow} carried more than was sent");
}

/// Gbit/s of `flows` concurrent transfers from a client in `from`.
fn measure(from: &Namespace, target: SocketAddr, flows: usize, direction: u8) -> f64 {
    let blocks = TOTAL / flows / BLOCK;
    let started = Instant::now();
    thread::scope(|scope| {
        for flow in 0..flows as u8 {
            scope.spawn(move || {
                from.run(|| {
                    let mut stream = connect(target).unwrap();
                    let mut request = vec![direction, flow];
                    request.extend((blocks as u32).to_be_bytes());
                    stream.write_all(&request).unwrap();
                    if direction == b'u' {
                        send(&mut stream, flow, blocks);
                        stream.shutdown(std::net::Shutdown::Write).unwrap();
                        let mut done = [0];
                        stream.read_exact(&mut done).unwrap();
                    } else {
                        receive(&mut stream, flow, blocks);
                    }
                });
            });
        }
    });
    (TOTAL * 8) as f64 / started.elapsed().as_secs_f64() / 1e9
}

#[test]
fn parallel_flows_carry_every_byte() {
    let world = World::new();
    let target = world.internet.serve_tcp(SERVER, |mut stream| {
        let mut request = [0; 6];
        stream.read_exact(&mut request).unwrap();
        let [direction, flow, blocks @ ..] = request;
        let blocks = u32::from_be_bytes(blocks) as usize;
        if direction == b'u' {
            receive(&mut stream, flow, blocks);
            stream.write_all(&[0]).unwrap();
        } else {
            send(&mut stream, flow, blocks);
        }
    });
    let sandbox = world.sandbox(EgressConfig::default());
    for (name, from) in [("host", &world.host), ("sandbox", &sandbox.namespace)] {
        for flows in FLOWS {
            let (up, down) = (measure(from, target, flows, b'u'), measure(from, target, flows, b'd'));
            println!("from {name:8} {flows} flow(s): up {up:5.2} Gbit/s, down {down:5.2} Gbit/s");
        }
    }
}
