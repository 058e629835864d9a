//! Attacks on the host's own services by address: every spelling of the host, and forged packets.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use testing::User;

use crate::support::{Server, repeats};

/// A TCP and a UDP service on one port of all addresses of the host. Counts connections and
/// datagrams.
struct HostService {
    port: u16,
    hits: Arc<AtomicUsize>,
}

impl HostService {
    fn start() -> Self {
        let (tcp, udp) = (0..50)
            .find_map(|_| {
                let tcp = TcpListener::bind("[::]:0").ok()?;
                let udp = UdpSocket::bind(("::", tcp.local_addr().ok()?.port())).ok()?;
                Some((tcp, udp))
            })
            .expect("a port that TCP and UDP have free");
        let port = tcp.local_addr().expect("an address").port();
        let hits = Arc::new(AtomicUsize::new(0));
        let (by_stream, by_datagram) = (Arc::clone(&hits), Arc::clone(&hits));
        std::thread::spawn(move || {
            for _ in tcp.incoming() {
                by_stream.fetch_add(1, Ordering::SeqCst);
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut buffer) {
                by_datagram.fetch_add(1, Ordering::SeqCst);
                let _ = udp.send_to(b"reached", from);
            }
        });
        Self { port, hits }
    }

    fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }
}

/// The host's addresses on all of its links.
fn host_addresses() -> Vec<IpAddr> {
    let shown = Command::new("ip").args(["-o", "addr", "show"]).output().expect("ip runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let field = |line: &str| line.split_whitespace().nth(3)?.split('/').next()?.parse().ok();
    shown.lines().filter_map(field).collect()
}

fn attack(server: &Server) {
    let service = HostService::start();
    let own = host_addresses();
    let sandbox = server.create();
    assert_eq!(sandbox.write("/home/user/addresses.py", include_bytes!("addresses.py")).status, 200);
    let listed: String = own.iter().map(|address| format!(" {address}")).collect();
    let command = format!("/usr/bin/python3 /home/user/addresses.py {}{listed}", service.port);
    for _ in 0..repeats(1, 10) {
        let output = sandbox.must("root", &command);
        let tried: usize = output.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count");
        assert!(tried > 70, "{output}");
        assert_eq!(service.hits(), 0, "the host was reached: {output}");
    }
    // The control: the host reaches the same service.
    TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], service.port))).expect("the host reaches its own service");
    crate::support::eventually("the service counts", std::time::Duration::from_secs(5), || {
        (service.hits() == 1).then_some(())
    });
}

#[test]
fn the_host_has_no_address_inside() {
    attack(&Server::with(&["--no-studio"]));
}

#[test]
fn the_host_has_no_address_inside_rootless_sandboxes() {
    testing::needs_root!("it becomes users with and without subordinate ids");
    for user in [User::with_subordinate_ids(), User::with_a_single_id()] {
        attack(&Server::for_user(user, &["--no-studio"]));
    }
}
