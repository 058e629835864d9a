//! Targets that a sandbox cannot reach, each with its control: the same attempt from where it is
//! allowed.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use hickory_proto::rr::RecordType;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use sandbar_egress::{Egress, EgressConfig};

use crate::dns::{addresses, ask, config, name_server};
use crate::lab::{
    HOST, NEIGHBOUR, NEIGHBOUR_V6, Namespace, PRIVATE, ROUTER, ROUTER_V6, SERVER, SERVER_V6, Sandbox, TIMEOUT, World,
    at, connect, greeting, refusal,
};

fn everything_allowed() -> EgressConfig {
    EgressConfig {
        allow_ranges: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
        ..EgressConfig::default()
    }
}

/// Asserts that a sandbox is refused with and without all ranges allowed, although `control`
/// reaches the target.
#[track_caller]
fn out_of_reach(world: &World, control: &Namespace, target: SocketAddr) {
    assert_eq!(control.run(|| greeting(target)).unwrap(), "welcome", "the control reaches {target}");
    for config in [EgressConfig::default(), everything_allowed()] {
        let sandbox = world.sandbox(config);
        assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused, "{target}");
    }
}

#[test]
fn the_hosts_own_addresses_are_refused() {
    let world = World::new();
    out_of_reach(&world, &world.internet, world.host.greet(HOST));
    out_of_reach(&world, &world.internet, world.host.greet("2001:db8:77::1".parse::<Ipv6Addr>().unwrap()));
    // A second address, and a range that only a route assigns to the host.
    world.host.ip("address add 198.51.100.7/24 dev outer");
    out_of_reach(&world, &world.internet, world.host.greet([198, 51, 100, 7]));
    world.host.ip("route add local 203.0.113.0/24 dev lo");
    out_of_reach(&world, &world.host, world.host.greet([203, 0, 113, 5]));
}

#[test]
fn an_address_the_host_gets_later_is_refused_at_once() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    let public = world.internet.greet(SERVER);
    assert_eq!(sandbox.run(|| greeting(public)).unwrap(), "welcome");
    world.host.ip("address add 198.51.100.8/24 dev outer");
    let target = world.host.greet([198, 51, 100, 8]);
    assert_eq!(world.internet.run(|| greeting(target)).unwrap(), "welcome");
    assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused);
}

/// Root in a sandbox can make its kernel send packets to loopback addresses; they must not arrive
/// at the host's loopback.
#[test]
fn the_hosts_loopback_is_refused() {
    let world = World::new();
    let (accepted, accepts) = mpsc::channel();
    let target = world.host.serve_tcp(Ipv4Addr::LOCALHOST, move |stream| accepted.send(stream).unwrap());
    world.host.run(|| connect(target)).expect("the control reaches it");
    accepts.recv_timeout(TIMEOUT).unwrap();
    for config in [EgressConfig::default(), everything_allowed()] {
        let sandbox = world.sandbox(config);
        sandbox.run(|| std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1")).unwrap();
        sandbox.namespace.ip("route del local 127.0.0.0/8 dev lo table local");
        sandbox.namespace.ip("route del local 127.0.0.1 dev lo table local");
        sandbox.namespace.ip("route add 127.0.0.0/8 dev tun0 src 192.0.0.2");
        let before = transmitted(&sandbox);
        // The refusal comes from a loopback address, which the sandbox's kernel does not accept
        // from a device.
        let attempt = sandbox.run(|| TcpStream::connect_timeout(&target, Duration::from_secs(2)));
        assert!(attempt.is_err());
        assert!(transmitted(&sandbox) > before, "the attempt did not leave the sandbox, so nothing was tested");
        assert!(accepts.try_recv().is_err(), "the host's server was reached");
    }
}

fn transmitted(sandbox: &Sandbox) -> u64 {
    sandbox.run(|| {
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = devices.lines().find_map(|line| line.trim().strip_prefix("tun0:")).unwrap();
        line.split_whitespace().nth(9).unwrap().parse().unwrap()
    })
}

#[test]
fn metadata_and_link_local_addresses_are_refused() {
    let world = World::new();
    for address in ["169.254.169.254", "168.63.129.16", "100.100.100.200"] {
        world.internet.ip(&format!("address add {address}/32 dev inner"));
        world.host.ip(&format!("route add {address}/32 via {ROUTER}"));
        out_of_reach(&world, &world.host, world.internet.greet(address.parse::<Ipv4Addr>().unwrap()));
    }
    world.internet.ip("-6 address add fd00:ec2::254/128 dev inner nodad");
    world.host.ip(&format!("-6 route add fd00:ec2::254/128 via {ROUTER_V6}"));
    out_of_reach(&world, &world.host, world.internet.greet("fd00:ec2::254".parse::<Ipv6Addr>().unwrap()));
}

#[test]
fn a_private_range_is_refused_until_the_configuration_allows_it() {
    let world = World::new();
    let target = world.internet.greet(PRIVATE);
    let sandbox = world.sandbox(EgressConfig::default());
    assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused);
    let allowed = EgressConfig { allow_ranges: vec!["10.77.0.0/24".parse().unwrap()], ..EgressConfig::default() };
    let sandbox = world.sandbox(allowed);
    assert_eq!(sandbox.run(|| greeting(target)).unwrap(), "welcome");
    assert_eq!(sandbox.run(|| refusal(at([10, 78, 0, 1], 80))), ErrorKind::ConnectionRefused, "another range");
}

#[test]
fn neighbours_of_the_host_need_leave() {
    let world = World::new();
    let v6 = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    let neighbours = [world.internet.greet(NEIGHBOUR), world.internet.greet(v6(NEIGHBOUR_V6))];
    let routed = [world.internet.greet(SERVER), world.internet.greet(v6(SERVER_V6))];
    let names = name_server(&world.internet, SERVER, 0);
    let sandbox = world.sandbox(config(names));
    for (neighbour, routed) in neighbours.into_iter().zip(routed) {
        assert_eq!(
            world.host.run(|| greeting(neighbour)).unwrap(),
            "welcome",
            "the control: the host reaches {neighbour}"
        );
        assert_eq!(sandbox.run(|| greeting(routed)).unwrap(), "welcome", "the control: {routed} is behind a router");
        assert_eq!(sandbox.run(|| refusal(neighbour)), ErrorKind::ConnectionRefused, "{neighbour}");
    }
    assert_eq!(sandbox.run(|| addresses(&ask("neighbour.example.", RecordType::A))), [] as [IpAddr; 0]);
    let decisions = sandbox.heard();
    assert!(decisions.iter().all(|decision| decision.reason.contains("egress.allow_ranges")), "{decisions:?}");
    let datagram = sandbox.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect(neighbours[0]).unwrap();
        socket.send(b"x").unwrap();
        socket.recv(&mut [0; 16]).unwrap_err().kind()
    });
    assert_eq!(datagram, ErrorKind::HostUnreachable);

    // The configuration allows them, by range and by name.
    let ranges = ["198.51.100.3/32", "2001:db8:77::/64"].map(|range| range.parse().unwrap()).to_vec();
    let sandbox = world.sandbox(EgressConfig { allow_ranges: ranges, ..EgressConfig::default() });
    for neighbour in neighbours {
        assert_eq!(sandbox.run(|| greeting(neighbour)).unwrap(), "welcome");
    }
    let allowed = EgressConfig { allow_names: vec!["neighbour.example".to_owned()], ..config(names) };
    let sandbox = world.sandbox(allowed);
    sandbox.run(|| {
        assert_eq!(refusal(neighbours[0]), ErrorKind::ConnectionRefused, "not resolved yet");
        assert_eq!(addresses(&ask("neighbour.example.", RecordType::A)), [IpAddr::from(NEIGHBOUR)]);
        assert_eq!(greeting(neighbours[0]).unwrap(), "welcome");
    });
}

/// Default routes of all forms, with a target that only they lead to, and their gateway.
#[test]
fn a_gateway_is_a_neighbour_and_a_tunnel_has_none() {
    let world = World::new();
    world.internet.ip("address add 203.0.113.9/32 dev inner");
    world.internet.ip("address add 192.0.2.77/32 dev inner");
    let (gateway, far) = (world.internet.greet([203, 0, 113, 9]), world.internet.greet([192, 0, 2, 77]));
    let sandbox = world.sandbox(EgressConfig::default());
    let reached = |target: SocketAddr| sandbox.run(|| greeting(target).is_ok());
    world.host.ip("route add default via 203.0.113.9 dev outer onlink");
    assert!(world.host.run(|| greeting(gateway)).is_ok() && !reached(gateway), "no other route leads to the gateway");
    assert!(reached(far), "the control: what is behind it");
    // Routes of tunnels, and routes to neighbours.
    for (add, reachable) in
        [("0.0.0.0/0", true), ("128.0.0.0/1", true), ("192.0.0.0/2", false), ("192.0.2.77/32", false)]
    {
        world.host.ip(&format!("route replace {add} dev outer"));
        assert!(world.host.run(|| greeting(far)).is_ok(), "the control: {add}");
        assert_eq!(reached(far), reachable, "{add}");
    }
}

#[test]
fn sandboxes_do_not_reach_each_other() {
    let world = World::new();
    let (sandbox, other) = (world.sandbox(everything_allowed()), world.sandbox(everything_allowed()));
    let target = other.namespace.greet(Ipv4Addr::UNSPECIFIED);
    for address in [[192, 0, 0, 1], [192, 0, 0, 2], [192, 0, 0, 3], [192, 0, 0, 4], [127, 0, 0, 1]] {
        let target = at(address, target.port());
        assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused, "{target}");
    }
    let itself = at([192, 0, 0, 2], target.port());
    assert_eq!(other.run(|| greeting(itself)).unwrap(), "welcome", "the control reaches it");
}

/// The listener that accepts rewritten connections does not serve direct ones.
#[test]
fn the_listener_inside_serves_only_rewritten_connections() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    let listeners = sandbox.run(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
    let local = listeners.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap();
    let port = u16::from_str_radix(local.split_once(':').unwrap().1, 16).unwrap();
    sandbox.run(|| {
        let ended = connect(at([192, 0, 0, 2], port)).and_then(|mut stream| {
            stream.write_all(b"x")?;
            stream.read(&mut [0])
        });
        assert!(matches!(ended, Ok(0) | Err(_)), "the listener answered");
        if let Err(error) = ended {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the connection was left hanging");
        }
    });
}

/// The type and code of the first ICMP message that answers a ping, after the IP header.
fn ping(target: Ipv4Addr) -> [u8; 2] {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT)).unwrap();
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    rustix::net::sendto(&socket, &echo, SendFlags::empty(), &at(target, 0)).unwrap();
    let mut answer = [0; 128];
    rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).unwrap();
    [answer[20], answer[21]]
}

#[test]
fn ping_is_answered_with_a_refusal() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    assert_eq!(world.host.run(|| ping(SERVER)), [0, 0], "the control gets an echo");
    assert_eq!(sandbox.run(|| ping(SERVER)), [3, 13], "communication prohibited");
}

#[test]
fn a_dropped_way_out_can_be_attached_again() {
    let world = World::new();
    let target = world.internet.serve_tcp(SERVER, |mut stream| {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    let mut sandbox = world.sandbox(EgressConfig::default());
    let mut old = sandbox.run(|| connect(target)).unwrap();
    old.write_all(b"x").unwrap();
    old.read_exact(&mut [0]).unwrap();
    for _ in 0..5 {
        drop(sandbox.egress.take());
        sandbox.egress = Some(world.attach(&sandbox.namespace, EgressConfig::default()).unwrap());
        let mut stream = sandbox.run(|| connect(target)).unwrap();
        stream.write_all(b"y").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    // A connection from before gets an error, also while it only waits.
    let error = old.read(&mut [0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset), "{error}");
    world.runtime.block_on(sandbox.egress.take().map(Egress::close).unwrap());
}
