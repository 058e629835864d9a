//! A network namespace that stands in for the internet, connected to the host by a veth pair. The
//! machine in it has a public address behind a router, a public address on the link itself and a
//! private address; a name server on the host's loopback resolves names to them. The namespace is
//! removed on drop, and also when the test process is killed.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testing::Tied;

use parking_lot::{Mutex, MutexGuard};

pub(crate) const PUBLIC: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 130);
/// Public as well, but on the host's own link: the host has no route with a gateway to it.
pub(crate) const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 131);
pub(crate) const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 213, 7, 2);
/// The host's end of the link, which no sandbox may reach.
pub(crate) const HOST_SIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 129);

pub(crate) struct Internet {
    /// The process that keeps the namespace, and with it the host's end of the link, alive.
    holder: Tied,
    services: Vec<Tied>,
    pub(crate) nameserver: SocketAddr,
    /// Queries that the name server received: the name and the number of the record type.
    asked: Asked,
    stop: Arc<AtomicBool>,
    /// Tests take turns, since the addresses are fixed. Declared last, so that it is released after
    /// all other fields were dropped.
    _only: MutexGuard<'static, ()>,
}

type Asked = Arc<Mutex<Vec<(String, u16)>>>;

fn run(command: &str) {
    let done = Command::new("bash").args(["-c", command]).output().expect("bash runs");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Starts a program and waits for the single line that it prints when it is ready.
fn start(program: &str, arguments: &[&str]) -> Tied {
    let mut command = Tied::command("KILL", program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let (process, output) = Tied::start(command, "KILL");
    let mut line = String::new();
    let read = BufReader::new(output.expect("stdout is piped")).read_line(&mut line);
    assert!(read.is_ok_and(|count| count > 0), "{arguments:?} did not say that it is ready");
    process
}

impl Internet {
    pub(crate) fn new() -> Self {
        static ONLY: Mutex<()> = Mutex::new(());
        let only = ONLY.lock();
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Asked::default();
        let nameserver = serve_names(Arc::clone(&stop), Arc::clone(&asked));
        let holder = start("unshare", &["--net", "sh", "-c", "echo; exec sleep infinity"]);
        let namespace = holder.pid();
        let internet = Self { holder, services: Vec::new(), nameserver, asked, stop, _only: only };
        let (link, inside) = (format!("sbt{namespace}"), format!("nsenter --net=/proc/{namespace}/ns/net ip"));
        run(&format!(
            "ip link add {link} type veth peer name eth0 netns {namespace} \
             && ip addr add {HOST_SIDE}/25 dev {link} && ip addr add 10.213.7.1/24 dev {link} && ip link set {link} up \
             && {inside} addr add {PUBLIC}/25 dev eth0 && {inside} addr add {NEIGHBOUR}/25 dev eth0 \
             && {inside} addr add {PRIVATE}/24 dev eth0 && {inside} link set eth0 up && {inside} link set lo up \
             && ip route add {PUBLIC}/32 via {PRIVATE} src {HOST_SIDE}"
        ));
        internet
    }

    /// Every query that the name server received so far.
    pub(crate) fn asked(&self) -> Vec<(String, u16)> {
        self.asked.lock().clone()
    }

    /// Runs a Python program on the remote machine until `self` is dropped. The program prints a
    /// line when it is ready.
    pub(crate) fn serve(&mut self, script: &str) {
        let namespace = format!("--net=/proc/{}/ns/net", self.holder.pid());
        self.services.push(start("nsenter", &[&namespace, "/usr/bin/python3", "-u", "-c", script]));
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let link = format!("sbt{}", self.holder.pid());
        // The kernel removes the link with the namespace, but asynchronously, and the next test
        // uses the same addresses.
        let _ = Command::new("ip").args(["link", "del", &link]).status();
    }
}

/// The address of a name, for the name server on the host's loopback, which only the server
/// reaches.
fn resolve(name: &str) -> Option<Ipv4Addr> {
    match name {
        "registry.test" => Some(PUBLIC),
        "forbidden.test" => Some(PUBLIC),
        "neighbour.test" => Some(NEIGHBOUR),
        "private.test" | "db.corp.internal" | "printer" => Some(PRIVATE),
        "loopback.test" => Some(Ipv4Addr::LOCALHOST),
        "host.test" => Some(HOST_SIDE),
        "metadata.test" => Some(Ipv4Addr::new(169, 254, 169, 254)),
        _ => None,
    }
}

fn serve_names(stop: Arc<AtomicBool>, asked: Asked) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let address = socket.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while !stop.load(Ordering::Relaxed) {
            let Ok((length, from)) = socket.recv_from(&mut query) else { continue };
            if let Some((name, kind, reply)) = reply(&query[..length]) {
                asked.lock().push((name, kind));
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    address
}

/// Parses a query of one question and makes the response: an A record, no record for other types,
/// or NXDOMAIN.
fn reply(query: &[u8]) -> Option<(String, u16, Vec<u8>)> {
    let (mut name, mut at) = (Vec::new(), 12);
    while *query.get(at)? != 0 {
        let length = usize::from(query[at]);
        name.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + length)?).to_lowercase());
        at += 1 + length;
    }
    let question = query.get(12..at + 5)?;
    let name = name.join(".");
    let address = resolve(&name);
    let kind = u16::from_be_bytes([question[question.len() - 4], question[question.len() - 3]]);
    let record = address.filter(|_| kind == 1);
    let mut reply = query.get(..2)?.to_vec();
    reply.extend([0x81, if address.is_some() { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(record.is_some()), 0, 0, 0, 0]);
    reply.extend(question);
    if let Some(address) = record {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(address.octets());
    }
    Some((name, kind, reply))
}
