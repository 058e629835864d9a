//! One budget for the flows of all sandboxes, and a rate per sandbox.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sandbar_egress::{Budget, EgressConfig};

use crate::lab::{SERVER, Sandbox, TIMEOUT, World, connect, refusal};

fn config(budget: &Arc<Budget>) -> EgressConfig {
    EgressConfig { budget: Arc::clone(budget), ..EgressConfig::default() }
}

/// Starts a server that sends back what it receives.
fn echo(world: &World) -> SocketAddr {
    world.internet.serve_tcp(SERVER, |mut stream| {
        let mut buffer = [0; 64];
        // An idle connection stays open.
        let _ = stream.set_read_timeout(None);
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    })
}

fn works(mut stream: &TcpStream) -> bool {
    let mut answer = [0; 2];
    stream.write_all(b"hi").and_then(|()| stream.read_exact(&mut answer)).is_ok_and(|()| &answer == b"hi")
}

/// Opens connections until one is refused, `most` at most.
fn fill(sandbox: &Sandbox, target: SocketAddr, most: usize) -> Vec<TcpStream> {
    sandbox.run(|| std::iter::from_fn(|| connect(target).ok().filter(works)).take(most).collect())
}

#[test]
fn a_greedy_sandbox_is_refused_and_newcomers_get_their_share() {
    let world = World::new();
    let target = echo(&world);
    // Forty TCP flows for all.
    let budget = Arc::new(Budget::new(80, 500));
    let greedy = world.sandbox(config(&budget));
    let kept = fill(&greedy, target, 100);
    assert!((30..40).contains(&kept.len()), "alone it gets all but the reserve: {}", kept.len());
    let begun = Instant::now();
    assert_eq!(greedy.run(|| refusal(target)), ErrorKind::ConnectionRefused, "a refusal, and not silence");
    assert!(begun.elapsed() < Duration::from_secs(5), "after {:?}", begun.elapsed());
    let reason = greedy.heard().pop().expect("the refusal is told").reason;
    assert!(reason.contains("share"), "{reason}");

    let newcomer = world.sandbox(config(&budget));
    let own = fill(&newcomer, target, 12);
    assert_eq!(own.len(), 12, "a newcomer gets its share, which is a third of all");
    assert!(own.iter().all(works), "and keeps it");
    let left = kept.iter().filter(|stream| works(stream)).count();
    assert!((12..kept.len()).contains(&left), "the greedy one keeps its share and loses the rest: {left}");
    let (oldest, newest) = (&kept[0], kept.last().expect("there are some"));
    assert!(!works(oldest) && works(newest), "what was unused for longest is closed");
    drop(kept);
    drop(own);
    testing::eventually("what is given back can be had again", TIMEOUT, || {
        (fill(&greedy, target, 20).len() == 20).then_some(())
    });
}

#[test]
fn datagrams_beyond_the_budget_are_refused_with_icmp() {
    let world = World::new();
    let socket = world.internet.run(|| UdpSocket::bind((SERVER, 0))).unwrap();
    let target = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], peer);
        }
    });
    let tcp = echo(&world);
    let budget = Arc::new(Budget::new(32, 500));
    let exchange = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(target).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.send(b"hi").and_then(|_| socket.recv(&mut [0; 8]))
    };
    let greedy = world.sandbox(config(&budget));
    let kept = fill(&greedy, tcp, 100);
    // The sandbox holds TCP flows only, so none of its flows can be closed for a datagram.
    assert!(greedy.run(exchange).is_err(), "{} flows are held", kept.len());
    let newcomer = world.sandbox(config(&budget));
    assert_eq!(newcomer.run(exchange).unwrap(), 2, "the control");
    drop(kept);
    for _ in 0..200 {
        greedy.run(exchange).expect("idle flows of its own make room for new ones");
    }
}

#[test]
fn connections_beyond_the_rate_wait_and_then_succeed() {
    let world = World::new();
    let target = echo(&world);
    let slow = world.sandbox(config(&Arc::new(Budget::new(1000, 2))));
    let begun = Instant::now();
    // Eight at once, then two per second; the kernel sends a waiting one again after a second.
    let streams = fill(&slow, target, 10);
    assert_eq!(streams.len(), 10, "those that wait are not refused");
    assert!(begun.elapsed() >= Duration::from_millis(500), "after {:?}", begun.elapsed());
    let begun = Instant::now();
    let neighbour = world.sandbox(EgressConfig::default());
    assert_eq!(fill(&neighbour, target, 10).len(), 10, "the control");
    assert!(begun.elapsed() < TIMEOUT);
}

/// The packets that the outer end of the sandbox's device has handed out.
fn handed_out() -> u64 {
    let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let counters = devices.lines().find_map(|line| line.trim_start().strip_prefix("tun0:")).expect("the device");
    counters.split_ascii_whitespace().nth(9).and_then(|sent| sent.parse().ok()).expect("a number")
}

#[test]
fn a_flood_of_refused_packets_is_dropped_by_the_kernel() {
    let world = World::new();
    let target = echo(&world);
    let flooding = world.sandbox(EgressConfig::default());
    let (begun, before) = (Instant::now(), flooding.run(handed_out));
    let sent = flooding.run(|| {
        let refused = SocketAddr::from(([10, 213, 99, 9], 9));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // The refusal of an earlier datagram is an error of a later one.
        let send = || drop(socket.send_to(b"x", refused));
        (0_u64..).take_while(|_| begun.elapsed() < Duration::from_secs(2)).map(|_| send()).count()
    });
    let read = flooding.run(handed_out) - before;
    // The burst, the rate, and what had been read when the burst was used up.
    let most = 10_000 + 5000 * (begun.elapsed().as_secs() + 1) + 64;
    eprintln!("the server read {read} of {sent} datagrams in {:?}", begun.elapsed());
    assert!(read <= most, "the server read {read} of {sent} datagrams; at most {most} were expected");
    assert_eq!(fill(&flooding, target, 3).len(), 3, "the control: its connections go on");
}
