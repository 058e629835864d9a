//! Attacks by malformed HTTP: a request that hides in another one must not reach a service behind
//! the edge.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Server, eventually};

/// Logs every byte that reaches it, and skips bodies only by `Content-Length`, so that a hidden
/// request shows.
const SERVICE: &str = r#"
import re, socketserver
class Service(socketserver.StreamRequestHandler):
    def handle(self):
        seen = b''
        while True:
            piece = self.request.recv(65536)
            if not piece: return
            seen += piece
            with open('/tmp/seen', 'ab') as log: log.write(piece + b'\n')
            while b'\r\n\r\n' in seen:
                head, seen = seen.split(b'\r\n\r\n', 1)
                found = re.search(rb'content-length: *(\d+)', head, re.I)
                if found: seen = seen[int(found.group(1)):]
                self.request.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True; daemon_threads = True
Server(('127.0.0.1', 8000), Service).serve_forever()
"#;

/// The request that the attacks hide.
const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";

/// Sends bytes on a new connection and returns what comes back until the edge closes it or sends
/// nothing for 700 ms.
fn send(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(&server.address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_millis(700))).expect("a timeout");
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn no_request_hides_in_another() {
    let server = Server::with(&["--no-studio"]);
    let sandbox = server.create();
    assert_eq!(sandbox.write("/home/user/service.py", SERVICE.as_bytes()).status, 200);
    sandbox.must("user", "setsid /usr/bin/python3 /home/user/service.py >/dev/null 2>&1 &");
    eventually("the service answers", Duration::from_secs(20), || {
        (sandbox.request(8000, "GET", "/", &[], b"").status == 200).then_some(())
    });
    let route = format!("Host: x\r\nE2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 8000\r\n", sandbox.id);
    let hidden = HIDDEN.len();
    let chunked = format!("{hidden:x}\r\n{HIDDEN}\r\n0\r\n\r\n");
    let attacks = [
        (
            "length and chunks",
            format!(
                "POST /a HTTP/1.1\r\n{route}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        (
            "chunks and length",
            format!(
                "POST /a HTTP/1.1\r\n{route}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        (
            "two lengths",
            format!("POST /a HTTP/1.1\r\n{route}Content-Length: 0\r\nContent-Length: {hidden}\r\n\r\n{HIDDEN}"),
        ),
        ("a list of lengths", format!("POST /a HTTP/1.1\r\n{route}Content-Length: 0, {hidden}\r\n\r\n{HIDDEN}")),
        ("a signed length", format!("POST /a HTTP/1.1\r\n{route}Content-Length: +0\r\n\r\n{HIDDEN}")),
        ("a negative length", format!("POST /a HTTP/1.1\r\n{route}Content-Length: -1\r\n\r\n{HIDDEN}")),
        ("a hexadecimal length", format!("POST /a HTTP/1.1\r\n{route}Content-Length: 0x0\r\n\r\n{HIDDEN}")),
        (
            "a space before the colon",
            format!("POST /a HTTP/1.1\r\n{route}Content-Length : 0\r\nTransfer-Encoding : chunked\r\n\r\n{HIDDEN}"),
        ),
        ("a folded header", format!("POST /a HTTP/1.1\r\n{route}Content-Length:\r\n 0\r\n\r\n{HIDDEN}")),
        ("an unknown coding", format!("POST /a HTTP/1.1\r\n{route}Transfer-Encoding: xchunked\r\n\r\n{HIDDEN}")),
        (
            "chunked not last",
            format!("POST /a HTTP/1.1\r\n{route}Transfer-Encoding: chunked, identity\r\n\r\n{HIDDEN}"),
        ),
        (
            "chunked twice",
            format!(
                "POST /a HTTP/1.1\r\n{route}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{chunked}"
            ),
        ),
        (
            "a vertical tab",
            format!("POST /a HTTP/1.1\r\n{route}Transfer-Encoding: \x0bchunked\r\nContent-Length: 0\r\n\r\n{HIDDEN}"),
        ),
        (
            "an endless chunk size",
            format!("POST /a HTTP/1.1\r\n{route}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{HIDDEN}"),
        ),
        ("a line feed in the target", format!("GET /a\nGET /smuggled HTTP/1.1\r\n{route}\r\n")),
        ("a carriage return in a value", format!("GET /a HTTP/1.1\r\n{route}X: a\rGET /smuggled HTTP/1.1\r\n\r\n")),
        ("a null in a value", format!("GET /a HTTP/1.1\r\n{route}X: a\0GET /smuggled\r\n\r\n")),
        ("CONNECT", format!("CONNECT x:8000 HTTP/1.1\r\n{route}\r\n{HIDDEN}")),
        (
            "h2c without an answer",
            format!(
                "GET /a HTTP/1.1\r\n{route}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n{HIDDEN}"
            ),
        ),
        ("HTTP/0.9", format!("GET /smuggled\r\n{route}\r\n")),
        ("an unknown version", format!("GET /smuggled HTTP/3.7\r\n{route}\r\n")),
    ];
    for (what, bytes) in &attacks {
        let answer = send(&server, bytes.as_bytes());
        let seen = sandbox.must("user", "cat /tmp/seen");
        // The edge may parse the request as a pipelined one and route it: `Host: x` names no
        // sandbox.
        assert!(!seen.contains("/smuggled"), "{what}: the service saw a hidden request: {seen:?}, {answer:?}");
    }
    // The control: the same request, sent openly, reaches the service and its log.
    let answer = send(&server, format!("GET /smuggled HTTP/1.1\r\n{route}\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(sandbox.must("user", "cat /tmp/seen").contains("/smuggled"), "the control");
}
