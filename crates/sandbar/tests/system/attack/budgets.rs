//! Attacks on shared resources: descriptors, flows, processes, connections, request heads.

use crate::support::internet::{HOST_SIDE, Internet, PUBLIC};
use crate::support::{Sandbox, Server, repeats};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Accepts every connection on port 8000, says a word and keeps it.
const KEEPER: &str = "
import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('0.0.0.0', 8000)); s.listen(4096)
print('.')
kept = []
while True:
    c, _ = s.accept(); c.sendall(b'far'); kept.append(c)
";

/// Opens connections until one is refused, tells how many there are, and keeps them.
fn hold_connections() -> String {
    format!(
        "import socket, time\nkept = []\ntry:\n    while len(kept) < 1000:\n        s = socket.create_connection(('{PUBLIC}', 8000), 20)\n\
         \x20       assert s.recv(3) == b'far'; kept.append(s)\n    print(len(kept), 'none', flush=True)\n\
         except OSError as e:\n    print(len(kept), type(e).__name__, flush=True)\ntime.sleep(600)"
    )
}

#[test]
fn sandboxes_that_hoard_connections_leave_the_server_and_others_theirs() {
    let mut internet = Internet::new();
    internet.serve(KEEPER);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("few.toml");
    let text = format!("[egress]\nnameservers = [\"{}\"]\n[limits]\ndescriptors = 800\n", internet.nameserver);
    std::fs::write(&file, text).expect("the configuration is written");
    let server = Server::with(&["--config", file.to_str().expect("a text path")]);
    let greedy: Vec<Sandbox> = (0..4).map(|_| server.create()).collect();
    let mut held = Vec::new();
    for sandbox in &greedy {
        let mut running = sandbox.start_as("user", &format!("exec /usr/bin/python3 -c \"{}\"", hold_connections()));
        running.pid();
        let event = running.next_event().expect("the stream is open").expect("an event comes");
        held.push((running, event));
    }
    // All four together would have had 4000 of 800 descriptors.
    let begun = Instant::now();
    assert_eq!(server.call("GET", "/v2/sandboxes", None).status, 200, "the API answers");
    let newcomer = server.create();
    let reached = newcomer.must("user", &format!("timeout 20 bash -c 'exec 3<>/dev/tcp/{PUBLIC}/8000; head -c 3 <&3'"));
    assert_eq!(reached, "far", "a newcomer has a share");
    assert!(begun.elapsed() < Duration::from_secs(30), "after {:?}", begun.elapsed());
    for sandbox in &greedy {
        assert_eq!(sandbox.must("user", "echo calm").trim(), "calm");
    }
    let refused = |event: &serde_json::Value| {
        let text = event["data"]["stdout"].as_str().unwrap_or_default();
        !text.is_empty()
    };
    assert!(held.iter().all(|(_, event)| refused(event)), "each was told in the end");
}

#[test]
fn a_stranger_who_hoards_connections_does_not_keep_this_machine_out() {
    let mut internet = Internet::new();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("few.toml");
    std::fs::write(&file, "[limits]\nconnections = 64\n").expect("the configuration is written");
    let config = file.to_str().expect("a text path").to_owned();
    let server = Server::everywhere(&["--config", &config, "--no-studio"]);
    let port = server.address.rsplit_once(':').expect("an address with a port").1.to_owned();
    // Says a line when all connections are open, and counts on for those that the server closes.
    internet.serve(&format!(
        "import socket, time\nopen = []\nfor _ in range(100):\n    s = socket.create_connection(('{HOST_SIDE}', {port}), 20)\n\
         \x20   s.sendall(b'GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n    open.append(s)\n\
         kept = 0\nfor s in open:\n    try: kept += len(s.recv(1)) > 0\n    except OSError: pass\n\
         assert kept == 32, kept\nprint('.')\ntime.sleep(600)"
    ));
    for _ in 0..20 {
        assert_eq!(server.call("GET", "/v2/sandboxes", None).status, 200, "this machine is served");
    }
}

#[test]
fn a_head_without_end_is_cut_and_costs_little() {
    let server = Server::with(&["--no-studio"]);
    let mut stream = TcpStream::connect(&server.address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it is not zero");
    let line = format!("X-Filler: {}\r\n", "a".repeat(1000));
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n").expect("it is read");
    for _ in 0..70 {
        // The server may have closed it by now.
        let _ = stream.write_all(line.as_bytes());
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(server.call("GET", "/v2/sandboxes", None).status, 200, "the control");
}

/// What six hostile sandboxes do, each until it is ended. The policy refuses where packets go: none leaves the host.
const ABUSES: [(&str, &str); 6] = [
    ("forks", "bomb() { bomb | bomb & }; bomb; sleep 1000"),
    ("memory", "while :; do /usr/bin/python3 -c 'x = [bytearray(1 << 20) for _ in range(4096)]'; done"),
    ("disk", "while :; do dd if=/dev/zero of=big bs=1M count=256 status=none; rm -f big; done"),
    (
        "packets",
        "exec /usr/bin/python3 -c \"import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True:\n  try: s.sendto(b'x', ('10.213.99.9', 9))\n  except OSError: pass\"",
    ),
    (
        "connections",
        "exec /usr/bin/python3 -c \"import socket\nwhile True:\n  s = socket.socket(); s.setblocking(False)\n  try: s.connect(('10.213.99.9', 9))\n  except OSError: pass\n  s.close()\"",
    ),
    ("logs", "yes"),
];

#[test]
fn six_hostile_sandboxes_leave_a_neighbour_and_the_api_in_peace() {
    let server = Server::with(&["--no-studio"]);
    let neighbour = server.create();
    let measure = |count: usize| {
        let mut times: Vec<Duration> = (0..count)
            .map(|_| {
                let started = Instant::now();
                assert_eq!(neighbour.must("user", "echo calm").trim(), "calm");
                started.elapsed()
            })
            .collect();
        times.sort();
        times
    };
    let quiet = measure(10);
    let hostile: Vec<Sandbox> = ABUSES
        .iter()
        .map(|_| server.create_with(json!({ "templateID": "base", "memoryMB": 256, "diskSizeMB": 512, "cpuCount": 1 })))
        .collect();
    let running: Vec<_> =
        hostile.iter().zip(ABUSES).map(|(sandbox, (_, abuse))| sandbox.start_as("user", abuse)).collect();
    let loaded = measure(repeats(20, 1000));
    let begun = Instant::now();
    assert_eq!(server.call("GET", "/v2/sandboxes", None).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(10), "the API took {:?}", begun.elapsed());
    let (before, during) = (quiet[quiet.len() / 2], loaded[loaded.len() / 2]);
    let p99 = loaded[(loaded.len() * 99 / 100).min(loaded.len() - 1)];
    eprintln!("exec: median {before:?} quiet, {during:?} beside six hostile sandboxes, p99 {p99:?}");
    assert!(during < Duration::from_secs(5), "half of the neighbour's commands took {during:?}");
    for sandbox in &hostile {
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", sandbox.id), None).status, 204);
    }
    drop(running);
}
