//! A lab of network namespaces: a host, an internet behind it, and sandboxes.
//!
//! ```text
//!   sandbox ── tun0 ── Egress, on a runtime whose threads live in ── host ── veth ── internet
//! ```
//! The host is a namespace too, so tests affect neither the machine they run on nor each other. A
//! child process holds a namespace and dies with the test; the kernel then removes all devices in
//! it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use launcher::bring_up_loopback;
use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandbar_egress::{Decision, Egress, EgressConfig, Policy, Rules};
use tokio::runtime::Runtime;

/// A public address of the internet, from a range for documentation, behind a router.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Addresses of the internet's machine on the link to the host itself, without a router between.
pub(crate) const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 3);
pub(crate) const NEIGHBOUR_V6: &str = "2001:db8:77::3";
/// The router, as the host sees it.
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 9, 2);
pub(crate) const ROUTER_V6: &str = "fd77::2";
/// The host's address towards the internet.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Private addresses of the internet's machine.
pub(crate) const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const OTHER_PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// A public IPv6 address of the internet, from a range for documentation.
pub(crate) const SERVER_V6: &str = "2001:db8:77::2";

/// The value of the secret `key`.
pub(crate) const SECRET: &str = "s3cret-v4lue";

pub(crate) struct Namespace {
    holder: Child,
    file: File,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        // The shell prints a line when the namespace exists, and lives as long as its input stays
        // open.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare from util-linux starts");
        let mut line = String::new();
        let output = holder.stdout.as_mut().expect("the output is piped");
        BufReader::new(output).read_line(&mut line).expect("the holder speaks");
        assert_eq!(line, "ready\n", "making a network namespace needs root");
        let file = File::open(format!("/proc/{}/ns/net", holder.id())).expect("the holder lives");
        let namespace = Self { holder, file };
        namespace.run(bring_up_loopback).expect("loopback comes up");
        namespace
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Runs `work` on a thread inside of the namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                enter(self.fd());
                work()
            });
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let status = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .arg("ip")
            .args(arguments.split_whitespace())
            .status()
            .expect("nsenter from util-linux and ip from iproute2 start");
        assert!(status.success(), "ip {arguments}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

pub(crate) fn enter(netns: BorrowedFd<'_>) {
    move_into_link_name_space(netns, Some(LinkNameSpaceType::Network)).expect("root may enter a namespace");
}

/// A host with its internet, and a runtime whose threads are in the host's namespace.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) host: Namespace,
    pub(crate) internet: Namespace,
}

impl World {
    pub(crate) fn new() -> Self {
        let (host, internet) = (Namespace::new(), Namespace::new());
        // The peer is created in its namespace: moving a device afterwards takes long.
        host.ip(&format!("link add outer type veth peer name inner netns {}", internet.holder.id()));
        host.ip("address add 198.51.100.1/24 dev outer");
        host.ip("address add 10.77.9.1/24 dev outer");
        host.ip("-6 address add 2001:db8:77::1/64 dev outer nodad");
        host.ip("-6 address add fd77::1/64 dev outer nodad");
        host.ip("link set outer up");
        internet.ip("address add 198.51.100.2/24 dev inner");
        internet.ip("address add 198.51.100.3/24 dev inner");
        internet.ip("address add 10.77.9.2/24 dev inner");
        internet.ip("address add 10.77.0.2/24 dev inner");
        internet.ip("address add 10.77.0.3/24 dev inner");
        internet.ip("-6 address add 2001:db8:77::2/64 dev inner nodad");
        internet.ip("-6 address add 2001:db8:77::3/64 dev inner nodad");
        internet.ip("-6 address add fd77::2/64 dev inner nodad");
        internet.ip("link set inner up");
        host.ip("route add 198.51.100.2/32 via 10.77.9.2");
        host.ip("route add 10.77.0.0/24 via 10.77.9.2");
        host.ip("-6 route add 2001:db8:77::2/128 via fd77::2");
        let home = host.file.try_clone().expect("descriptors are left");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(move || enter(home.as_fd()))
            .build()
            .expect("a runtime starts");
        Self { runtime, host, internet }
    }

    pub(crate) fn sandbox(&self, config: EgressConfig) -> Sandbox {
        self.sandbox_with(config, Rules::default())
    }

    pub(crate) fn sandbox_with(&self, config: EgressConfig, rules: Rules) -> Sandbox {
        let (namespace, heard) = (Namespace::new(), Arc::new(Mutex::new(Vec::new())));
        let hears = Arc::clone(&heard);
        let journal = Arc::new(move |decision| hears.lock().push(decision));
        let secrets = Arc::new(|name: &str| (name == "key").then(|| SECRET.to_owned()));
        let policy = Policy { rules, journal, secrets };
        let egress = self.attach_with(&namespace, config, policy, None).expect("the sandbox is attached");
        Sandbox { egress: Some(egress), namespace, heard }
    }

    pub(crate) fn attach(&self, namespace: &Namespace, config: EgressConfig) -> io::Result<Egress> {
        self.attach_with(namespace, config, Policy::unheard(Rules::default()), None)
    }

    pub(crate) fn attach_with(
        &self,
        namespace: &Namespace,
        config: EgressConfig,
        policy: Policy,
        names: Option<&Path>,
    ) -> io::Result<Egress> {
        // Attached from the host, as the server does.
        self.host.run(|| {
            let _runtime = self.runtime.enter();
            Egress::attach(namespace.fd(), Arc::new(config), policy, names)
        })
    }
}

/// A sandbox's namespace and its egress, which is dropped first.
pub(crate) struct Sandbox {
    pub(crate) egress: Option<Egress>,
    pub(crate) namespace: Namespace,
    heard: Arc<Mutex<Vec<Decision>>>,
}

impl Sandbox {
    /// The decisions so far, oldest first.
    pub(crate) fn heard(&self) -> Vec<Decision> {
        self.heard.lock().clone()
    }

    pub(crate) fn set_rules(&self, rules: Rules) {
        self.egress.as_ref().expect("it is attached").set_rules(rules);
    }

    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(work)
    }
}

pub(crate) fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

/// Limit of every wait for an event that must happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Connects, and sets a timeout for every later read and write.
pub(crate) fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
    with_deadlines(&stream);
    Ok(stream)
}

pub(crate) fn with_deadlines(stream: &TcpStream) {
    stream.set_read_timeout(Some(TIMEOUT)).expect("the timeout is not zero");
    stream.set_write_timeout(Some(TIMEOUT)).expect("the timeout is not zero");
}

/// The error of a connection from the calling thread's namespace.
pub(crate) fn refusal(target: SocketAddr) -> io::ErrorKind {
    connect(target).map(|_| ()).expect_err("the connection should not be possible").kind()
}

impl Namespace {
    /// Starts a TCP server that calls `serve` for every connection, each on its own thread.
    pub(crate) fn serve_tcp(
        &self,
        address: impl Into<IpAddr>,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> SocketAddr {
        self.serve_tcp_at(at(address, 0), serve)
    }

    /// As [`Namespace::serve_tcp`], at a given port.
    pub(crate) fn serve_tcp_at(
        &self,
        address: SocketAddr,
        serve: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> SocketAddr {
        let listener = self.run(|| TcpListener::bind(address)).expect("the address is the namespace's");
        let bound = listener.local_addr().expect("a listener has an address");
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, serve) = (stream.expect("connections can be accepted"), Arc::clone(&serve));
                with_deadlines(&stream);
                thread::spawn(move || serve(stream));
            }
        });
        bound
    }

    /// Starts a TCP server that sends a word to every connection and closes it.
    pub(crate) fn greet(&self, address: impl Into<IpAddr>) -> SocketAddr {
        self.serve_tcp(address, |mut stream| {
            let _ = stream.write_all(b"welcome"); // A client may be gone already.
        })
    }
}

/// What a server of [`Namespace::greet`] sends.
pub(crate) fn greeting(target: SocketAddr) -> io::Result<String> {
    let mut text = String::new();
    connect(target)?.read_to_string(&mut text)?;
    Ok(text)
}
