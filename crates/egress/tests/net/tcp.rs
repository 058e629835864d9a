//! TCP out of a sandbox behaves like a direct connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;
use sandbar_egress::EgressConfig;

use crate::lab::{SERVER, SERVER_V6, TIMEOUT, World, at, connect, greeting, refusal};

fn everything(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the other side ends its direction");
    text
}

/// Waits until the connection reports an error by itself, without reading or writing.
fn wait_for_reset(stream: &TcpStream) {
    let mut watched = [PollFd::new(stream, PollFlags::empty())];
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut watched, Some(&timeout)).unwrap(), 1, "no reset arrived");
    assert!(watched[0].revents().contains(PollFlags::ERR), "{:?}", watched[0].revents());
}

#[test]
fn the_client_may_end_its_direction_first() {
    let world = World::new();
    let target = world.internet.serve_tcp(SERVER, |mut stream| {
        let text = everything(&mut stream);
        stream.write_all(text.to_uppercase().as_bytes()).unwrap();
    });
    let sandbox = world.sandbox(EgressConfig::default());
    sandbox.run(|| {
        let mut stream = connect(target).unwrap();
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(everything(&mut stream), "HELLO");
    });
}

#[test]
fn the_server_may_end_its_direction_first() {
    let world = World::new();
    let (heard, hears) = mpsc::channel();
    let target = world.internet.serve_tcp(SERVER, move |mut stream| {
        stream.write_all(b"all I have").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        heard.send(everything(&mut stream)).unwrap();
    });
    let sandbox = world.sandbox(EgressConfig::default());
    sandbox.run(|| {
        let mut stream = connect(target).unwrap();
        assert_eq!(everything(&mut stream), "all I have");
        stream.write_all(b"and this after your end").unwrap();
    });
    assert_eq!(hears.recv_timeout(TIMEOUT).unwrap(), "and this after your end");
}

#[test]
fn a_closed_port_refuses_the_connection() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    // The kernel sends the second packet of an attempt after a second. A busy machine may take as
    // long for the first, but not each time.
    let at_once = || {
        let started = Instant::now();
        assert_eq!(sandbox.run(|| refusal(at(SERVER, 9))), ErrorKind::ConnectionRefused);
        started.elapsed() < Duration::from_millis(900)
    };
    assert!((0..20).any(|_| at_once()), "the refusal always came with a later packet");
}

#[test]
fn a_machine_that_is_not_there_is_unreachable() {
    let world = World::new();
    // A neighbour, for which no router answers.
    let allow_ranges = vec!["198.51.100.99/32".parse().unwrap()];
    let sandbox = world.sandbox(EgressConfig { allow_ranges, ..EgressConfig::default() });
    assert_eq!(sandbox.run(|| refusal(at([198, 51, 100, 99], 80))), ErrorKind::HostUnreachable);
    assert_eq!(sandbox.run(|| refusal(at([203, 0, 113, 1], 80))), ErrorKind::NetworkUnreachable);
}

#[test]
fn a_reset_by_the_server_reaches_the_client() {
    let world = World::new();
    let target = world.internet.serve_tcp(SERVER, |mut stream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let sandbox = world.sandbox(EgressConfig::default());
    sandbox.run(|| {
        let mut stream = connect(target).unwrap();
        stream.write_all(b"x").unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_reset_by_the_client_reaches_the_server() {
    let world = World::new();
    let (heard, hears) = mpsc::channel();
    let target = world.internet.serve_tcp(SERVER, move |mut stream| {
        stream.write_all(b"x").unwrap();
        heard.send(stream.read(&mut [0]).map_err(|error| error.kind())).unwrap();
    });
    let sandbox = world.sandbox(EgressConfig::default());
    sandbox.run(|| {
        let mut stream = connect(target).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    assert_eq!(hears.recv_timeout(TIMEOUT).unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn a_slow_reader_stops_the_writer_and_still_learns_of_a_reset() {
    let world = World::new();
    let (accepted, accepts) = mpsc::channel();
    let target = world.internet.serve_tcp(SERVER, move |stream| accepted.send(stream).unwrap());
    let sandbox = world.sandbox(EgressConfig::default());
    let taken = sandbox.run(|| {
        let mut stream = connect(target).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
        let chunk = vec![7; 1 << 20];
        let mut taken = 0;
        let stopped = loop {
            match stream.write(&chunk) {
                Ok(count) => taken += count,
                Err(error) => break error.kind(),
            }
            assert!(taken < 256 << 20, "nothing holds the writer back");
        };
        assert_eq!(stopped, ErrorKind::WouldBlock);
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        taken
    });
    let server = accepts.recv_timeout(TIMEOUT).unwrap();
    wait_for_reset(&server);
    // Four kernel buffers of at most 6 MiB.
    assert!(taken < 32 << 20, "{taken} bytes were taken in");
}

#[test]
fn a_half_closed_connection_still_carries_a_reset() {
    let world = World::new();
    let (accepted, accepts) = mpsc::channel();
    let target = world.internet.serve_tcp(SERVER, move |mut stream| {
        assert_eq!(everything(&mut stream), "last words");
        accepted.send(stream).unwrap();
    });
    let sandbox = world.sandbox(EgressConfig::default());
    let server = sandbox.run(move || {
        let mut stream = connect(target).unwrap();
        stream.write_all(b"last words").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let server = accepts.recv_timeout(TIMEOUT).unwrap();
        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        server
    });
    wait_for_reset(&server);
}

#[test]
fn a_thousand_short_connections_all_succeed() {
    const THREADS: usize = 8;
    const EACH: usize = 126;
    let world = World::new();
    let target = world.internet.greet(SERVER);
    let sandbox = world.sandbox(EgressConfig::default());
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                sandbox.run(|| {
                    for _ in 0..EACH {
                        assert_eq!(greeting(target).unwrap(), "welcome");
                    }
                });
            });
        }
    });
    let each = started.elapsed() / (THREADS * EACH) as u32;
    println!("{} short connections, {each:?} each", THREADS * EACH);
}

#[test]
fn ipv6_is_carried_too() {
    let world = World::new();
    let target = world.internet.greet(SERVER_V6.parse::<Ipv6Addr>().unwrap());
    let sandbox = world.sandbox(EgressConfig::default());
    assert_eq!(sandbox.run(|| greeting(target)).unwrap(), "welcome");
    assert_eq!(sandbox.run(|| refusal(at(target.ip(), 9))), ErrorKind::ConnectionRefused);
    assert_eq!(sandbox.run(|| refusal("[2001:db8:99::1]:80".parse().unwrap())), ErrorKind::NetworkUnreachable);
}
