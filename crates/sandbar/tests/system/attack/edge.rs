//! Attacks on a sandbox's ports from outside: tokens, interpreter contexts, resumes by traffic.

use crate::support::{Sandbox, Server, eventually};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use testing::http::{self, Reply};

const GUEST: &str = "49983";
const INTERPRETER: &str = "49999";
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A service that answers every request with the head of the request.
const ECHO: &str = r#"
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line: return
            head += line
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(head) + head)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 3000), Echo).serve_forever()
"#;

/// Sends a request of a client that knows only the sandbox's id, and `headers`.
fn ask(server: &Server, id: &str, port: &str, line: &str, headers: &[(&str, &str)]) -> Reply {
    let (method, path) = line.split_once(' ').expect("METHOD PATH");
    let all = [&[("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", port)], headers].concat();
    http::request(&server.address, method, path, &all, b"").unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// A signed URL of a file, as SDKs make it with the sandbox's token.
fn signed_url(path: &str, token: &str, expiration: Option<i64>) -> String {
    let end = expiration.map(|end| format!(":{end}")).unwrap_or_default();
    let digest = Sha256::digest(format!("{path}:read::{token}{end}"));
    let signature = STANDARD_NO_PAD.encode(digest).replace('+', "%2B").replace('/', "%2F");
    let end = expiration.map(|end| format!("&signature_expiration={end}")).unwrap_or_default();
    format!("/files?path={path}&signature=v1_{signature}{end}")
}

#[track_caller]
fn serve_echo(server: &Server, sandbox: &Sandbox) -> crate::support::sandbox::Running {
    assert_eq!(sandbox.write("/home/user/echo.py", ECHO.as_bytes()).status, 200);
    let running = sandbox.start_as("user", "exec python3 /home/user/echo.py");
    eventually("the service listens", START_TIMEOUT, || {
        (ask(server, &sandbox.id, "3000", "GET /", &[]).status == 200).then_some(())
    });
    running
}

fn state(server: &Server, id: &str) -> String {
    server.call("GET", &format!("/sandboxes/{id}"), None).json()["state"].as_str().expect("a state").to_owned()
}

#[test]
fn only_requests_that_the_sandbox_would_answer_resume_it() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let sandbox = server.create_with(json!({
        "templateID": "base", "timeout": 600, "autoPause": true, "autoResume": { "enabled": true }
    }));
    let _service = serve_echo(&server, &sandbox);
    sandbox.write("/home/user/a.txt", b"hello");
    let (id, token) = (sandbox.id.as_str(), sandbox.token.as_str());
    let pause = || assert_eq!(server.call("POST", &format!("/sandboxes/{id}/pause"), None).status, 204);
    let signed = |expiration| format!("GET {}", signed_url("/home/user/a.txt", token, Some(expiration)));
    pause();
    let wrong = ("X-Access-Token", "wrong");
    let asked = [("Origin", "http://evil.test"), ("Access-Control-Request-Method", "POST")];
    let expired = signed(1);
    for (port, line, headers, status) in [
        (GUEST, "POST /process.Process/Start", &[wrong][..], 401),
        (GUEST, "POST /process.Process/Start", &[], 401),
        (GUEST, "GET /files?path=/etc/passwd", &[wrong], 401),
        (GUEST, "GET /files?path=/etc/passwd&signature=v1_forged", &[], 401),
        (GUEST, expired.as_str(), &[], 401),
        (GUEST, "GET /health", &[], 502),
        (GUEST, "OPTIONS /files", &asked, 204),
        (INTERPRETER, "POST /execute", &[wrong], 401),
        ("1", "GET /", &[], 502),
        ("3001", "GET /", &[("X-Access-Token", token)], 502),
    ] {
        let reply = ask(&server, id, port, line, headers);
        assert_eq!(reply.status, status, "{port} {line}: {}", reply.text());
        assert_eq!(state(&server, id), "paused", "{port} {line}");
    }
    // The controls: each of these requests resumes the sandbox.
    let right = ("X-Access-Token", token);
    for (port, line, headers, status) in [
        (GUEST, "GET /health", &[right][..], 204),
        (GUEST, &signed(4_000_000_000), &[], 200),
        (INTERPRETER, "GET /contexts", &[right], 200),
        ("3000", "GET /first-request", &[], 200),
    ] {
        let reply = ask(&server, id, port, line, headers);
        assert_eq!(reply.status, status, "{port} {line}: {}", reply.text());
        assert_eq!(state(&server, id), "running", "{port} {line}");
        pause();
    }
}

#[test]
fn resumes_by_traffic_are_rate_limited() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let auto = json!({ "templateID": "base", "timeout": 600, "autoPause": true, "autoResume": { "enabled": true } });
    let (sandbox, other) = (server.create_with(auto.clone()), server.create_with(auto));
    let pause_and_resume = |sandbox: &Sandbox| {
        let paused = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), None);
        assert_eq!(paused.status, 204, "{}", paused.text());
        ask(&server, &sandbox.id, GUEST, "GET /health", &[("X-Access-Token", &sandbox.token)])
    };
    // The token bucket has 30 resumes and refills by one per 2 s. A round is faster, so it runs
    // empty.
    let refused = (0..400).map(|_| pause_and_resume(&sandbox)).find(|reply| reply.status != 204).expect("a refusal");
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(state(&server, &sandbox.id), "paused");
    assert_eq!(pause_and_resume(&other).status, 204, "another sandbox has a rate of its own");
    eventually("it can be woken again", START_TIMEOUT, || {
        let reply = ask(&server, &sandbox.id, GUEST, "GET /health", &[("X-Access-Token", &sandbox.token)]);
        (reply.status == 204).then_some(())
    });
}

/// Sends a request from another address of this machine and returns the status.
fn status_from_other_address(server: &Server, id: &str, line: &str, token: Option<&str>) -> String {
    let (method, path) = line.split_once(' ').expect("METHOD PATH");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "60", "--noproxy", "*", "--interface", "127.0.0.9", "--request", method]);
    curl.args(["--header", &format!("E2b-Sandbox-Id: {id}"), "--header", &format!("E2b-Sandbox-Port: {INTERPRETER}")]);
    curl.args(token.iter().flat_map(|token| ["--header".to_owned(), format!("X-Access-Token: {token}")]));
    curl.args(["--header", "Sandbar-Known-Peer: 1", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    let done = curl.arg(format!("http://{}{path}", server.address)).output().expect("curl is installed");
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn contexts_are_closed_to_unknown_addresses() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let sandbox = server.create();
    let (id, token) = (sandbox.id.as_str(), sandbox.token.as_str());
    // Packages from 2.9 on send no token. The edge accepts the address that created the sandbox.
    let made = ask(&server, id, INTERPRETER, "POST /contexts", &[]);
    assert_eq!(made.status, 200, "{}", made.text());
    let context = made.json()["id"].as_str().expect("an ID").to_owned();
    let (restart, remove) = (format!("POST /contexts/{context}/restart"), format!("DELETE /contexts/{context}"));
    for line in ["GET /contexts", "POST /contexts", &restart, &remove, "POST /execute"] {
        assert_eq!(status_from_other_address(&server, id, line, None), "401", "{line}");
        assert_eq!(status_from_other_address(&server, id, line, Some("wrong")), "401", "{line}");
    }
    let listed = ask(&server, id, INTERPRETER, "GET /contexts", &[]).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "nothing was made or removed: {listed}");
    assert_eq!(ask(&server, id, INTERPRETER, "GET /contexts", &[("X-Access-Token", "wrong")]).status, 401);
    // The controls: the token is accepted, and then the address without the token.
    assert_eq!(status_from_other_address(&server, id, "GET /health", None), "200");
    assert_eq!(status_from_other_address(&server, id, "GET /contexts", Some(token)), "200");
    assert_eq!(status_from_other_address(&server, id, &restart, None), "204");
    let other = server.create();
    assert_eq!(
        status_from_other_address(&server, &other.id, "GET /contexts", None),
        "401",
        "it is known to one sandbox only"
    );
    assert_eq!(ask(&server, id, INTERPRETER, &remove, &[]).status, 204);
}

#[test]
fn services_see_no_credentials_and_one_host() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let sandbox = server.create();
    let _service = serve_echo(&server, &sandbox);
    let raw = |head: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("the server listens");
        stream.set_read_timeout(Some(START_TIMEOUT)).expect("a socket");
        stream.write_all(head.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let name = format!("3000-{}.localhost", sandbox.id);
    let seen = raw(&format!(
        "GET /x HTTP/1.1\r\nHost: {name}\r\nX-Access-Token: {}\r\nX-CuStOm-Name: kept\r\n\
         cOOkie: a=1; sandbar_session=sbs_stolen; b=2\r\nCookie: __Host-sandbar_session=sbs_stolen\r\n\
         E2b-Traffic-Access-Token: secret\r\nSandbar-Known-Peer: 1\r\nConnection: close\r\n\r\n",
        sandbox.token
    ));
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    for secret in [sandbox.token.as_str(), "sbs_stolen", "Traffic", "Known-Peer"] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
    for kept in ["X-CuStOm-Name: kept", "cOOkie: a=1; b=2", &format!("Host: {name}")] {
        assert!(seen.contains(kept), "{kept} in {seen}");
    }
    for (first, second) in [(name.as_str(), "localhost"), ("localhost", name.as_str()), (&name, &name)] {
        let answer = raw(&format!("GET /x HTTP/1.1\r\nHost: {first}\r\nHost: {second}\r\nConnection: close\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let absolute = raw(&format!("GET http://{name}/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    assert!(absolute.contains(&format!("Host: {name}")) && !absolute.contains("Host: localhost"), "{absolute}");
}

#[test]
fn a_signed_page_runs_outside_of_the_dashboard_s_origin() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let sandbox = server.create();
    sandbox.write("/home/user/a.html", b"<script>fetch('/api/me')</script>");
    sandbox.write("/home/user/a.txt", b"text");
    let get = |path: &str| {
        let target = signed_url(path, &sandbox.token, None);
        http::request(&server.address, "GET", &target, &[], b"").expect("an answer")
    };
    let page = get("/home/user/a.html");
    assert_eq!((page.status, page.header("content-security-policy")), (200, Some("sandbox")));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let text = get("/home/user/a.txt");
    assert_eq!((text.status, text.text().as_str(), text.header("content-security-policy")), (200, "text", None));
}
