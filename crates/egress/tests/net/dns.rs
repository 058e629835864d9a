//! Names that the host resolves for the sandbox's own name server.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use sandbar_egress::{EgressConfig, NAMESERVER};

use crate::lab::{
    HOST, NEIGHBOUR, Namespace, OTHER_PRIVATE, PRIVATE, SERVER, SERVER_V6, TIMEOUT, World, at, connect, greeting,
    refusal, with_deadlines,
};

/// The records of the name server in the test's internet.
fn zone(name: &str) -> Option<Vec<RData>> {
    let v4 = |addresses: &[Ipv4Addr]| Some(addresses.iter().map(|address| RData::A(A(*address))).collect());
    match name {
        "public.example." | "shared.example." => v4(&[SERVER]),
        "host.example." => v4(&[HOST]),
        "neighbour.example." => v4(&[NEIGHBOUR]),
        "printer." | "5.0.0.10.in-addr.arpa." => v4(&[SERVER]),
        "loopback.example." => v4(&[Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 9, 9, 9)]),
        "metadata.example." => v4(&[Ipv4Addr::new(169, 254, 169, 254)]),
        "unspecified.example." => v4(&[Ipv4Addr::UNSPECIFIED]),
        "mixed.example." => v4(&[Ipv4Addr::LOCALHOST, SERVER, PRIVATE]),
        "registry.corp." | "private.example." => v4(&[PRIVATE]),
        "other.corp." => v4(&[OTHER_PRIVATE]),
        "alias.allowed.example." => Some(vec![RData::CNAME(CNAME(ascii("registry.corp.")))]),
        "v6.example." => Some(vec![RData::AAAA(AAAA(SERVER_V6.parse().unwrap()))]),
        "unrouted-v6.example." => Some(vec![RData::AAAA(AAAA("2001:db8:99::1".parse().unwrap()))]),
        "long.example." => {
            Some((0..40).map(|number| RData::TXT(TXT::new(vec![format!("{number}").repeat(40)]))).collect())
        }
        _ => None,
    }
}

fn ascii(name: &str) -> Name {
    Name::from_ascii(name).unwrap()
}

pub(crate) fn respond(question: &[u8], limit: usize) -> Vec<u8> {
    let question = Message::from_vec(question).unwrap();
    let query = question.queries[0].clone();
    let mut answer = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
    answer.metadata.recursion_available = true;
    let (mut name, mut records) = (query.name().clone(), Vec::new());
    while let Some(data) = zone(&name.to_lowercase().to_ascii()) {
        let owner = name.clone();
        let mut alias = None;
        for data in data {
            if let RData::CNAME(target) = &data {
                alias = Some(target.0.clone());
            } else if data.record_type() != query.query_type() {
                continue;
            }
            records.push(Record::from_rdata(owner.clone(), 300, data));
        }
        match alias {
            Some(target) => name = target,
            None => break,
        }
    }
    if zone(&query.name().to_lowercase().to_ascii()).is_none() {
        answer.metadata.response_code = ResponseCode::NXDomain;
    }
    answer.add_query(query);
    let mut whole = answer.clone();
    whole.add_answers(records);
    let bytes = whole.to_vec().unwrap();
    if bytes.len() <= limit {
        return bytes;
    }
    answer.metadata.truncation = true;
    answer.to_vec().unwrap()
}

/// Starts a name server over UDP and TCP that ignores the first `deaf` queries.
pub(crate) fn name_server(place: &Namespace, address: impl Into<IpAddr>, deaf: usize) -> SocketAddr {
    let address = at(address, 0);
    let (listener, socket) = place.run(|| {
        let listener = TcpListener::bind(address).unwrap();
        let socket = UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
        (listener, socket)
    });
    let bound = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        loop {
            let (length, peer) = socket.recv_from(&mut buffer).unwrap();
            if asked.fetch_add(1, Ordering::Relaxed) >= deaf {
                socket.send_to(&respond(&buffer[..length], 512), peer).unwrap();
            }
        }
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            with_deadlines(&stream);
            let answer = respond(&read_message(&mut stream), 65_535);
            write_message(&mut stream, &answer);
        }
    });
    bound
}

fn read_message(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message).unwrap();
    message
}

fn write_message(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(&[&(message.len() as u16).to_be_bytes(), message].concat()).unwrap();
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(ascii(name), kind));
    question
}

fn exchange_udp(question: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(at(NAMESERVER, 53)).unwrap();
    socket.send(question).unwrap();
    let mut buffer = vec![0; 65_535];
    let length = socket.recv(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// Queries as a program in the sandbox does.
pub(crate) fn ask(name: &str, kind: RecordType) -> Message {
    let question = question(name, kind);
    let answer = Message::from_vec(&exchange_udp(&question.to_vec().unwrap())).unwrap();
    assert_eq!(answer.metadata.id, question.metadata.id);
    assert_eq!(answer.queries, question.queries);
    answer
}

pub(crate) fn addresses(answer: &Message) -> Vec<IpAddr> {
    let address = |record: &Record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    };
    answer.answers.iter().filter_map(address).collect()
}

pub(crate) fn config(server: SocketAddr) -> EgressConfig {
    EgressConfig { nameservers: Some(vec![server]), ..EgressConfig::default() }
}

#[test]
fn names_resolve_over_udp_and_tcp() {
    let world = World::new();
    // Also through a stub resolver that listens on the host's loopback only, as systemd's does.
    let stub = name_server(&world.host, Ipv4Addr::new(127, 0, 0, 53), 0);
    let server = name_server(&world.internet, SERVER, 0);
    for server in [server, stub] {
        let sandbox = world.sandbox(config(server));
        sandbox.run(|| {
            let answer = ask("Public.Example.", RecordType::A);
            assert_eq!(
                (answer.metadata.response_code, addresses(&answer)),
                (ResponseCode::NoError, vec![SERVER.into()])
            );
            assert_eq!(ask("nowhere.example.", RecordType::A).metadata.response_code, ResponseCode::NXDomain);
            assert!(ask("long.example.", RecordType::TXT).metadata.truncation);

            let mut stream = connect(at(NAMESERVER, 53)).unwrap();
            for (name, records) in [("long.example.", 40), ("public.example.", 0)] {
                let question = question(name, RecordType::TXT);
                write_message(&mut stream, &question.to_vec().unwrap());
                let answer = Message::from_vec(&read_message(&mut stream)).unwrap();
                assert_eq!((answer.metadata.id, answer.answers.len()), (question.metadata.id, records), "{name}");
            }
        });
    }
}

#[test]
fn only_the_name_service_answers_at_the_name_servers_address() {
    let world = World::new();
    let sandbox = world.sandbox(EgressConfig::default());
    assert_eq!(sandbox.run(|| refusal(at(NAMESERVER, 80))), ErrorKind::ConnectionRefused);
}

#[test]
fn names_do_not_lead_to_the_host_or_a_private_network() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let sandbox = world.sandbox(config(server));
    sandbox.run(|| {
        for name in [
            "host.example.",
            "neighbour.example.",
            "loopback.example.",
            "metadata.example.",
            "unspecified.example.",
            "private.example.",
        ] {
            let answer = ask(name, RecordType::A);
            assert_eq!((answer.metadata.response_code, addresses(&answer)), (ResponseCode::NoError, vec![]), "{name}");
        }
        assert_eq!(addresses(&ask("mixed.example.", RecordType::A)), [IpAddr::from(SERVER)]);

        // The filter applies over TCP, too.
        let mut stream = connect(at(NAMESERVER, 53)).unwrap();
        write_message(&mut stream, &question("mixed.example.", RecordType::A).to_vec().unwrap());
        assert_eq!(addresses(&Message::from_vec(&read_message(&mut stream)).unwrap()), [IpAddr::from(SERVER)]);
    });
}

#[test]
fn an_allowed_name_opens_its_private_address_once_resolved() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let (registry, other) = (world.internet.greet(PRIVATE), world.internet.greet(OTHER_PRIVATE));
    for allowed in ["registry.corp", "*.allowed.example"] {
        let sandbox = world.sandbox(EgressConfig { allow_names: vec![allowed.into()], ..config(server) });
        let name = if allowed.starts_with('*') { "alias.allowed.example." } else { "registry.corp." };
        sandbox.run(|| {
            assert_eq!(refusal(registry), ErrorKind::ConnectionRefused, "not resolved yet");
            assert_eq!(addresses(&ask("other.corp.", RecordType::A)), [] as [IpAddr; 0]);
            assert_eq!(addresses(&ask(name, RecordType::A)), [IpAddr::from(PRIVATE)]);
            assert_eq!(greeting(registry).unwrap(), "welcome");
            assert_eq!(refusal(other), ErrorKind::ConnectionRefused, "another private address");
        });
    }
}

/// Over UDP, and over TCP, which zone transfers use.
#[test]
fn what_concerns_the_hosts_network_is_not_asked() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let sandbox = world.sandbox(config(server));
    let over_tcp = |name: &str, kind: RecordType| {
        let mut stream = connect(at(NAMESERVER, 53)).unwrap();
        write_message(&mut stream, &question(name, kind).to_vec().unwrap());
        Message::from_vec(&read_message(&mut stream)).unwrap()
    };
    for (name, kind, code) in [
        ("public.example.", RecordType::AXFR, ResponseCode::Refused),
        ("public.example.", RecordType::ANY, ResponseCode::Refused),
        ("Printer.", RecordType::A, ResponseCode::NXDomain),
        ("registry.corp.", RecordType::A, ResponseCode::NXDomain),
        ("5.0.0.10.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain),
        ("1.100.51.198.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain),
    ] {
        for answer in sandbox.run(|| [ask(name, kind), over_tcp(name, kind)]) {
            assert_eq!((answer.metadata.response_code, answer.answers.len()), (code, 0), "{name} {kind}");
        }
    }
    assert_eq!(sandbox.run(|| addresses(&over_tcp("public.example.", RecordType::A))), [IpAddr::from(SERVER)]);
    // Where a private range is allowed, its names are resolved; the answers are checked against the
    // range.
    let ranges = EgressConfig { allow_ranges: vec!["10.77.0.2/32".parse().unwrap()], ..config(server) };
    let sandbox = world.sandbox(ranges);
    sandbox.run(|| {
        assert_eq!(addresses(&ask("registry.corp.", RecordType::A)), [IpAddr::from(PRIVATE)]);
        assert_eq!(addresses(&ask("other.corp.", RecordType::A)), [] as [IpAddr; 0]);
        assert_eq!(ask("registry.corp.", RecordType::TXT).metadata.response_code, ResponseCode::NXDomain);
    });
}

#[test]
fn ipv6_addresses_are_given_only_where_the_host_has_a_way_there() {
    let world = World::new();
    let server = name_server(&world.internet, SERVER, 0);
    let sandbox = world.sandbox(config(server));
    sandbox.run(|| {
        assert_eq!(addresses(&ask("v6.example.", RecordType::AAAA)), [SERVER_V6.parse::<IpAddr>().unwrap()]);
        let answer = ask("unrouted-v6.example.", RecordType::AAAA);
        assert_eq!((answer.metadata.response_code, addresses(&answer)), (ResponseCode::NoError, vec![]));
    });
}

#[test]
fn a_silent_server_is_asked_again_and_then_the_next() {
    let world = World::new();
    let silent = name_server(&world.internet, SERVER, usize::MAX);
    let forgetful = name_server(&world.internet, SERVER, 1);
    for servers in [vec![forgetful], vec![silent, forgetful]] {
        let sandbox = world.sandbox(EgressConfig { nameservers: Some(servers), ..EgressConfig::default() });
        assert_eq!(sandbox.run(|| addresses(&ask("public.example.", RecordType::A))), [IpAddr::from(SERVER)]);
    }
}

#[test]
fn without_any_server_the_query_fails_in_time() {
    let world = World::new();
    let sandbox = world.sandbox(config(at(SERVER, 9)));
    let started = Instant::now();
    let answer = sandbox.run(|| ask("public.example.", RecordType::A));
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_is_no_question_gets_an_error_or_nothing() {
    let world = World::new();
    let sandbox = world.sandbox(config(at(SERVER, 9)));
    sandbox.run(|| {
        let mut update = question("public.example.", RecordType::A);
        update.metadata.op_code = OpCode::Update;
        let answer = Message::from_vec(&exchange_udp(&update.to_vec().unwrap())).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::NotImp);

        let mut broken = question("public.example.", RecordType::A).to_vec().unwrap();
        broken.truncate(20);
        let answer = Message::from_vec(&exchange_udp(&broken)).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::FormErr);
        assert_eq!(answer.metadata.id.to_be_bytes(), broken[..2]);
    });
}
