//! UDP out of a sandbox.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;

use sandbar_egress::EgressConfig;

use crate::lab::{HOST, Namespace, SERVER, SERVER_V6, TIMEOUT, World, at};

/// Starts a server that sends every datagram back.
fn echo(internet: &Namespace, address: impl Into<IpAddr>) -> SocketAddr {
    let address = at(address, 0);
    let socket = internet.run(|| UdpSocket::bind(address)).unwrap();
    let bound = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 65_535];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).unwrap();
            socket.send_to(&buffer[..length], peer).unwrap();
        }
    });
    bound
}

fn socket_to(target: SocketAddr) -> UdpSocket {
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.connect(target).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn exchange(socket: &UdpSocket, length: usize) -> io::Result<()> {
    let sent: Vec<u8> = (0..length).map(|index| (index * 7 + length) as u8).collect();
    socket.send(&sent)?;
    let mut buffer = vec![0; 65_535];
    let received = socket.recv(&mut buffer)?;
    assert!(buffer[..received] == sent, "{received} of {length} bytes came back");
    Ok(())
}

#[test]
fn datagrams_of_every_size_come_back_whole() {
    let world = World::new();
    let v4 = echo(&world.internet, SERVER);
    let v6 = echo(&world.internet, SERVER_V6.parse::<Ipv6Addr>().unwrap());
    let sandbox = world.sandbox(EgressConfig::default());
    sandbox.run(|| {
        for target in [v4, v6] {
            let socket = socket_to(target);
            for length in [0, 1, 2, 511, 1472, 1473, 9000, 65_000, 65_487] {
                exchange(&socket, length).unwrap();
            }
        }
        exchange(&socket_to(v4), 65_507).unwrap();
    });
}

#[test]
fn many_sockets_are_kept_apart() {
    let world = World::new();
    let target = echo(&world.internet, SERVER);
    let sandbox = world.sandbox(EgressConfig::default());
    sandbox.run(|| {
        let sockets: Vec<UdpSocket> = (0..200).map(|_| socket_to(target)).collect();
        for (number, socket) in sockets.iter().enumerate() {
            socket.send(&number.to_be_bytes()).unwrap();
        }
        for (number, socket) in sockets.iter().enumerate() {
            let mut answer = [0; 16];
            assert_eq!(socket.recv(&mut answer).unwrap(), 8);
            assert_eq!(answer[..8], number.to_be_bytes());
        }
    });
}

#[test]
fn a_closed_port_is_reported() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    for address in [SERVER.into(), SERVER_V6.parse::<IpAddr>().unwrap()] {
        let error = sandbox.run(|| exchange(&socket_to(at(address, 9)), 4)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
    }
}

#[test]
fn a_denied_target_is_reported() {
    let world = World::new();
    let target = echo(&world.host, HOST);
    let control = world.internet.run(|| exchange(&socket_to(target), 4));
    control.expect("the server answers permitted clients");
    let sandbox = world.sandbox(EgressConfig::default());
    let error = sandbox.run(|| exchange(&socket_to(target), 4)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
}
