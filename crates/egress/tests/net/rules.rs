//! What the rules of one sandbox allow: lists of ranges and names, changed while connections are
//! open.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use parking_lot::Mutex;
use sandbar_egress::{EgressConfig, Policy, Protocol, Rules};

use crate::dns::{addresses, ask, config, name_server, respond};
use crate::lab::{HOST, Namespace, SERVER, SERVER_V6, TIMEOUT, World, at, connect, greeting, refusal};
use crate::tls::{ask_http, http_server, trust};

fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    Rules::new(allow, deny, &[]).unwrap()
}

/// Starts a server that sends `hello` and then echoes, until the connection ends.
fn echo(place: &Namespace) -> SocketAddr {
    place.serve_tcp(SERVER, |mut stream| {
        let mut buffer = [0; 1024];
        let _ = stream.write_all(b"hello");
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    })
}

#[test]
fn ranges_decide_and_allowed_wins() {
    let world = World::new();
    let (v4, v6) = (world.internet.greet(SERVER), world.internet.greet(SERVER_V6.parse::<IpAddr>().unwrap()));
    for (allow, deny, expected) in [
        (&[][..], &[][..], [true, true]),
        (&[], &["198.51.100.0/24"], [false, true]),
        (&["198.51.100.2"], &["198.51.100.0/24"], [true, true]),
        (&[], &["0.0.0.0/0"], [false, false]),
        (&["198.51.100.2"], &["0.0.0.0/0"], [true, false]),
        (&["2001:db8:77::/64"], &["0.0.0.0/0"], [false, true]),
    ] {
        let sandbox = world.sandbox_with(EgressConfig::default(), rules(allow, deny));
        let reached = sandbox.run(|| [v4, v6].map(|target| greeting(target).is_ok()));
        assert_eq!(reached, expected, "allow {allow:?}, deny {deny:?}");
        // On a slow machine the kernel sends the first packet again before the refusal arrives.
        let mut decisions = sandbox.heard();
        decisions.dedup();
        let allowed: Vec<bool> = decisions.iter().map(|decision| decision.allowed).collect();
        let expected = if deny.is_empty() { Vec::new() } else { expected.to_vec() };
        assert_eq!(allowed, expected, "every decision of a sandbox with rules is told");
    }
}

#[test]
fn rules_never_open_what_the_machine_closes() {
    let world = World::new();
    let target = world.host.greet(HOST);
    let sandbox = world.sandbox_with(EgressConfig::default(), rules(&["0.0.0.0/0", "198.51.100.1"], &[]));
    assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused);
    let heard = sandbox.heard();
    assert_eq!((heard[0].allowed, heard[0].reason.as_str()), (false, "an address of the host"));
    assert_eq!((heard[0].address, heard[0].port), (Some(HOST.into()), Some(target.port())));
}

#[test]
fn new_rules_hold_for_connections_that_live() {
    let world = World::new();
    let (tcp, udp) = (echo(&world.internet), world.internet.run(|| UdpSocket::bind((SERVER, 0)).unwrap()));
    let target = udp.local_addr().unwrap();
    let sandbox = world.sandbox(EgressConfig::default());
    let mut stream = sandbox.run(|| connect(tcp)).unwrap();
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).unwrap();
    let socket = sandbox.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap());
    for socket in [&udp, &socket] {
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    socket.connect(target).unwrap();
    socket.send(b"first").unwrap();
    let mut buffer = [0; 16];
    let (_, from) = udp.recv_from(&mut buffer).unwrap();

    // Another range is denied: open connections stay.
    sandbox.set_rules(rules(&[], &["203.0.113.0/24"]));
    stream.write_all(b"still").unwrap();
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"still");

    sandbox.set_rules(rules(&[], &["0.0.0.0/0"]));
    let ended = stream.read(&mut hello);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert_eq!(sandbox.run(|| refusal(tcp)), ErrorKind::ConnectionRefused);
    // The return path of the datagrams is closed, too. Datagrams before the refusal may be lost, so
    // they are sent until it arrives.
    let refused = (0..1000).find_map(|_| {
        udp.send_to(b"back", from).unwrap();
        socket.send(b"second").err()
    });
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::HostUnreachable));

    sandbox.set_rules(Rules::default());
    assert!(sandbox.run(|| connect(tcp)).is_ok());
}

/// Starts a name server that records the queried names.
fn listening_name_server(place: &Namespace) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let socket = place.run(|| UdpSocket::bind((SERVER, 0)).unwrap());
    let (bound, asked) = (socket.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&asked);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).unwrap();
            let question = Message::from_vec(&buffer[..length]).unwrap();
            noted.lock().push(question.queries[0].name().to_ascii());
            socket.send_to(&respond(&buffer[..length], 512), peer).unwrap();
        }
    });
    (bound, asked)
}

#[test]
fn only_allowed_names_are_asked_for() {
    let world = World::new();
    let (server, asked) = listening_name_server(&world.internet);
    let closed = rules(&["public.example", "*.allowed.example"], &["0.0.0.0/0"]);
    let sandbox = world.sandbox_with(config(server), closed);
    sandbox.run(|| {
        let answer = ask("Public.Example.", RecordType::A);
        assert_eq!(addresses(&answer), [IpAddr::from(SERVER)]);
        for (name, kind) in [
            ("secret.evil.example.", RecordType::A),
            ("secret.evil.example.", RecordType::TXT),
            ("allowed.example.", RecordType::A),
            ("2.100.51.198.in-addr.arpa.", RecordType::PTR),
            (".", RecordType::NS),
        ] {
            let answer = ask(name, kind);
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused, "{name}");
            assert!(answer.answers.is_empty());
        }
    });
    assert_eq!(*asked.lock(), ["Public.Example."], "the others are not queried");
    let heard = sandbox.heard();
    let refused = heard.iter().find(|decision| !decision.allowed).unwrap();
    assert_eq!((refused.protocol, refused.name.as_deref()), (Protocol::Dns, Some("secret.evil.example")));

    // The name server itself cannot be reached, nor any other.
    assert_eq!(sandbox.run(|| refusal(at(SERVER, 53))), ErrorKind::ConnectionRefused);
    let direct = sandbox.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect(at([203, 0, 113, 5], 53)).unwrap();
        socket.send(b"a question").unwrap();
        socket.recv(&mut [0; 16]).unwrap_err().kind()
    });
    assert_eq!(direct, ErrorKind::HostUnreachable);
}

#[test]
fn a_name_allows_the_address_that_it_led_to() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let target = world.internet.greet(SERVER);
    let sandbox = world.sandbox_with(config(server), rules(&["public.example"], &["0.0.0.0/0"]));
    sandbox.run(|| {
        assert_eq!(refusal(target), ErrorKind::ConnectionRefused, "before the name was resolved");
        ask("public.example.", RecordType::A);
        assert_eq!(greeting(target).unwrap(), "welcome");
    });
    let decisions = sandbox.heard();
    let last = decisions.last().unwrap();
    assert_eq!((last.allowed, last.name.as_deref()), (true, Some("public.example")));
    // Names that were resolved while everything was allowed count when they are allowed later.
    let sandbox = world.sandbox(config(server));
    sandbox.run(|| ask("public.example.", RecordType::A));
    sandbox.set_rules(rules(&["public.example"], &["0.0.0.0/0"]));
    assert_eq!(sandbox.run(|| greeting(target)).unwrap(), "welcome");
    sandbox.set_rules(rules(&["other.example"], &["0.0.0.0/0"]));
    assert_eq!(sandbox.run(|| refusal(target)), ErrorKind::ConnectionRefused);
}

#[test]
fn a_name_that_was_resolved_before_a_restart_still_counts() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let target = world.internet.greet(SERVER);
    let (namespace, directory) = (Namespace::new(), tempfile::tempdir().unwrap());
    let file = directory.path().join("sandbox.names");
    let attach = || {
        let policy = Policy::unheard(rules(&["public.example"], &["0.0.0.0/0"]));
        world.attach_with(&namespace, config(server), policy, Some(&file)).unwrap()
    };
    let first = attach();
    namespace.run(|| ask("public.example.", RecordType::A));
    assert_eq!(namespace.run(|| greeting(target)).unwrap(), "welcome");
    drop(first);
    let _second = attach();
    assert_eq!(namespace.run(|| greeting(target)).unwrap(), "welcome", "without another query");
    assert_eq!(namespace.run(|| refusal(at([203, 0, 113, 5], 80))), ErrorKind::ConnectionRefused);
}

#[test]
fn names_that_share_an_address_are_distinguished() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let (target, (web, _)) = (echo(&world.internet), http_server(&world.internet, at(SERVER, 0)));
    let directory = tempfile::tempdir().unwrap();
    let trust = Some(trust(directory.path(), Vec::new()));
    let config = EgressConfig { trust, ..config(server) };
    let sandbox = world.sandbox_with(config, rules(&["public.example"], &["0.0.0.0/0"]));
    sandbox.run(|| {
        ask("public.example.", RecordType::A);
        let request = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        // In pieces, to be reassembled.
        let mut stream = connect(web).unwrap();
        for piece in request("public.example").as_bytes().chunks(7) {
            stream.write_all(piece).unwrap();
        }
        assert!(ask_http(&mut stream, "").unwrap().ends_with("ok 0"));

        let mut stream = connect(target).unwrap();
        stream.write_all(request("shared.example").as_bytes()).unwrap();
        let mut heard = Vec::new();
        // The server's greeting may still arrive; nothing of the request is echoed.
        let _ = stream.read_to_end(&mut heard);
        assert!(b"hello".starts_with(&heard[..]), "{:?}", String::from_utf8_lossy(&heard));
        // A connection without a name may be for any.
        for nameless in [&b"\x00plain"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n"] {
            let mut stream = connect(target).unwrap();
            stream.write_all(nameless).unwrap();
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard);
            assert!(b"hello".starts_with(&heard[..]), "{:?}", String::from_utf8_lossy(&heard));
        }
        // The first packet of QUIC encrypts the name.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.connect(target).unwrap();
        socket.send(&[0xc3; 1200]).unwrap();
        assert_eq!(socket.recv(&mut [0; 16]).unwrap_err().kind(), ErrorKind::HostUnreachable);
    });
    let denied: Vec<_> = sandbox.heard().into_iter().filter(|decision| !decision.allowed).collect();
    assert_eq!(denied.len(), 5, "{denied:?}");
    assert_eq!(denied[0].name.as_deref(), Some("shared.example"));
    assert!(denied[1..4].iter().all(|decision| decision.reason.contains("says no name")), "{denied:?}");
    assert_eq!(denied[4].protocol, Protocol::Udp);
}

#[test]
fn a_sandbox_can_have_name_servers_of_its_own() {
    let world = World::new();
    let listening = |place: &Namespace, address: Ipv4Addr| {
        let socket = place.run(|| UdpSocket::bind((address, 53)).unwrap());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let (length, peer) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&respond(&buffer[..length], 512), peer).unwrap();
            }
        });
    };
    listening(&world.internet, SERVER);
    listening(&world.host, HOST);
    // The machine's own name server would never answer.
    let silent = name_server(&world.internet, SERVER, usize::MAX);
    let with = |server: Ipv4Addr| Rules::new::<&str>(&[], &[], &[server]).unwrap();
    let sandbox = world.sandbox_with(config(silent), with(SERVER));
    assert_eq!(sandbox.run(|| addresses(&ask("public.example.", RecordType::A))), [IpAddr::from(SERVER)]);
    for forbidden in [HOST, Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 77, 0, 2)] {
        let sandbox = world.sandbox_with(config(silent), with(forbidden));
        let answer = sandbox.run(|| ask("public.example.", RecordType::A));
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "{forbidden}");
    }
}
