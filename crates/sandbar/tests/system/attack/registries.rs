//! Attacks by registries: addresses of the host, endless responses, redirects.

use crate::support::program::text;
use crate::support::{Program, Server};
use parking_lot::Mutex;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use tempfile::TempDir;

/// A registry of the attacker: `answer` gets the path of each request and writes the whole
/// response.
struct HostileRegistry {
    address: SocketAddr,
    paths: Arc<Mutex<Vec<String>>>,
}

impl HostileRegistry {
    fn start(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (address, answer) = (listener.local_addr().expect("an address"), Arc::new(answer));
        let paths = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&paths);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut head = String::new();
                    let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
                    while reader.read_line(&mut head).is_ok_and(|count| count > 2) {}
                    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                    log.lock().push(path.clone());
                    answer(&path, &mut stream);
                });
            }
        });
        Self { address, paths }
    }

    fn seen(&self) -> Vec<String> {
        self.paths.lock().clone()
    }
}

fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    // Fails if the server has closed the connection, as some tests expect.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

/// Starts a server whose configuration names these registries. Returns the configuration's
/// directory as well.
fn server_that_names(registries: &[SocketAddr]) -> (Server, TempDir) {
    let place = tempfile::tempdir().expect("a directory");
    let named: Vec<String> = registries.iter().map(|address| format!("\"{address}\" = \"http://{address}\"")).collect();
    let file = place.path().join("config.toml");
    let config = format!("[sandboxes]\nmax_image_mb = 64\nregistry_mirrors = {{ {} }}\n", named.join(", "));
    std::fs::write(&file, config).expect("written");
    (Server::with(&["--no-studio", "--config", file.to_str().expect("a plain path")]), place)
}

fn build(server: &Server, image: &str) -> Output {
    let context = tempfile::tempdir().expect("a directory");
    let context = context.path().to_str().expect("a plain path");
    Program::new("template").at(server).run(&["build", "--from", image, "--name", "attack", context])
}

/// Asserts that a build from `image` fails, and returns its message.
#[track_caller]
fn fail_build(server: &Server, image: &str) -> String {
    let done = build(server, image);
    assert!(!done.status.success(), "{image}: {done:?}");
    text(&done.stderr)
}

/// Peak resident memory of the server, in bytes.
fn peak(server: &Server) -> u64 {
    let described = std::fs::read_to_string(server.file("server.json")).expect("the server runs");
    let described: serde_json::Value = serde_json::from_str(&described).expect("JSON");
    let status = std::fs::read_to_string(format!("/proc/{}/status", described["pid"])).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn services_of_the_host_get_requests_only_if_configured() {
    let answer = |_: &str, stream: &mut TcpStream| send(stream, "404 Not Found", "", b"{}");
    let (service, named) = (HostileRegistry::start(answer), HostileRegistry::start(answer));
    let (server, _place) = server_that_names(&[named.address]);
    let port = service.address.port();
    let open = fail_build(&server, &format!("127.0.0.1:{port}/a/b"));
    assert!(open.contains("has no public address") && open.contains("registry_mirrors"), "{open}");
    // A port without a listener yields the same message, so that the message reveals no open port.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let shut = fail_build(&server, &format!("127.0.0.1:{closed}/a/b"));
    assert_eq!(open.replace(&port.to_string(), "P"), shut.replace(&closed.to_string(), "P"));
    for host in ["localhost", "127.0.0.2", "0.0.0.0", "169.254.169.254", "10.0.0.1"] {
        let message = fail_build(&server, &format!("{host}:{port}/a/b"));
        assert!(message.contains("has no public address"), "{host}: {message}");
    }
    assert_eq!(service.seen(), [""; 0], "nothing was sent to a service of the host");
    // The control: the same request to a registry that the configuration names.
    let message = fail_build(&server, &format!("{}/a/b", named.address));
    assert!(message.contains("does not exist there"), "{message}");
    assert_eq!(named.seen(), ["/v2/", "/v2/a/b/manifests/latest"]);
}

#[test]
fn a_manifest_without_end_costs_the_server_no_memory() {
    let registry = HostileRegistry::start(|path, stream| {
        if path == "/v2/" {
            return send(stream, "200 OK", "", b"");
        }
        let piece = vec![b' '; 1 << 20];
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        let mut is_taken = stream.write_all(head.as_bytes()).is_ok();
        // 400 MiB show in the memory of a server without a limit, and do not exhaust the machine.
        for _ in 0..400 {
            is_taken = is_taken && stream.write_all(&piece).is_ok();
        }
    });
    let (server, _place) = server_that_names(&[registry.address]);
    let before = peak(&server);
    let message = fail_build(&server, &format!("{}/a/b", registry.address));
    assert!(message.contains("more than the 4194304 bytes"), "{message}");
    let grown = peak(&server) - before;
    assert!(grown < 100 << 20, "the server has taken {grown} bytes");
}

#[test]
fn a_registry_cannot_redirect_to_a_service_of_the_host() {
    let service = HostileRegistry::start(|_, stream| send(stream, "200 OK", "", b"{}"));
    let target = format!("http://{}/admin", service.address);
    let registry = HostileRegistry::start(move |path, stream| match path {
        "/v2/" => send(stream, "200 OK", "", b""),
        _ if path.contains("/manifests/") => {
            let digest = format!("sha256:{}", "0".repeat(64));
            let manifest = json!({ "config": { "digest": digest, "size": 2 }, "layers": [] });
            send(stream, "200 OK", "", manifest.to_string().as_bytes());
        }
        _ => send(stream, "307 Temporary Redirect", &format!("Location: {target}\r\n"), b""),
    });
    let (server, _place) = server_that_names(&[registry.address]);
    let message = fail_build(&server, &format!("{}/a/b", registry.address));
    assert!(message.contains("has no public address"), "{message}");
    assert_eq!(service.seen(), [""; 0]);
    // The control: the server follows a redirect to a registry that the configuration names.
    let (server, _place) = server_that_names(&[registry.address, service.address]);
    let message = fail_build(&server, &format!("{}/a/b", registry.address));
    assert_eq!(service.seen(), ["/admin"], "{message}");
}
