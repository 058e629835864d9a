//! A small internet of our own: a network namespace joined to the host, with a host at a public-looking address and one
//! at a private address, and a name server for both. Dropped, it is gone; so it is when the tests are killed.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use testing::Tied;

pub(crate) const PUBLIC: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 130);
pub(crate) const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 213, 7, 2);
/// The host's own side of the link: never to be reached from a sandbox.
pub(crate) const HOST_SIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 129);

pub(crate) struct Internet {
    /// Keeps the namespace, and with it the host's side of the link.
    holder: Tied,
    services: Vec<Tied>,
    pub(crate) nameserver: SocketAddr,
    stop: Arc<AtomicBool>,
    /// There is one of each address. Last: given back when all else is gone.
    _only: MutexGuard<'static, ()>,
}

fn run(command: &str) {
    let done = Command::new("bash").args(["-c", command]).output().expect("bash runs");
    assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Starts a program that prints a line, and no more, when it is ready.
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
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        let stop = Arc::new(AtomicBool::new(false));
        let nameserver = serve_names(Arc::clone(&stop));
        let holder = start("unshare", &["--net", "sh", "-c", "echo; exec sleep infinity"]);
        let namespace = holder.pid();
        let internet = Self { holder, services: Vec::new(), nameserver, stop, _only: only };
        let (link, inside) = (format!("sbt{namespace}"), format!("nsenter --net=/proc/{namespace}/ns/net ip"));
        run(&format!(
            "ip link add {link} type veth peer name eth0 netns {namespace} \
             && ip addr add {HOST_SIDE}/25 dev {link} && ip addr add 10.213.7.1/24 dev {link} && ip link set {link} up \
             && {inside} addr add {PUBLIC}/25 dev eth0 && {inside} addr add {PRIVATE}/24 dev eth0 \
             && {inside} link set eth0 up && {inside} link set lo up"
        ));
        internet
    }

    /// Runs a Python program on the far host until the internet is dropped; it prints a line when it serves.
    pub(crate) fn serve(&mut self, script: &str) {
        let namespace = format!("--net=/proc/{}/ns/net", self.holder.pid());
        self.services.push(start("nsenter", &[&namespace, "/usr/bin/python3", "-u", "-c", script]));
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let link = format!("sbt{}", self.holder.pid());
        // It would go with the namespace as well, but in the kernel's own time, and the next one has the same addresses.
        let _ = Command::new("ip").args(["link", "del", &link]).status();
    }
}

/// Names under `.test`, on the host's loopback, where only the server can ask.
fn answer(name: &str) -> Option<Ipv4Addr> {
    match name {
        "registry.test" => Some(PUBLIC),
        "private.test" => Some(PRIVATE),
        "loopback.test" => Some(Ipv4Addr::LOCALHOST),
        "host.test" => Some(HOST_SIDE),
        "metadata.test" => Some(Ipv4Addr::new(169, 254, 169, 254)),
        _ => None,
    }
}

fn serve_names(stop: Arc<AtomicBool>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let address = socket.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while !stop.load(Ordering::Relaxed) {
            let Ok((length, from)) = socket.recv_from(&mut query) else { continue };
            if let Some(reply) = reply(&query[..length]) {
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    address
}

/// The answer to a one-question query: an A record, nothing for other types, or "no such name".
fn reply(query: &[u8]) -> Option<Vec<u8>> {
    let (mut name, mut at) = (Vec::new(), 12);
    while *query.get(at)? != 0 {
        let length = usize::from(query[at]);
        name.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + length)?).to_lowercase());
        at += 1 + length;
    }
    let question = query.get(12..at + 5)?;
    let address = answer(&name.join("."));
    let wants_address = question[question.len() - 4..question.len() - 2] == [0, 1];
    let record = address.filter(|_| wants_address);
    let mut reply = query.get(..2)?.to_vec();
    reply.extend([0x81, if address.is_some() { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(record.is_some()), 0, 0, 0, 0]);
    reply.extend(question);
    if let Some(address) = record {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        reply.extend(address.octets());
    }
    Some(reply)
}
