//! Attacks on the host by a page of which the server takes a screenshot. `crates/browser` tests the
//! attempts one by one; here the whole server takes the screenshot, and a service of the host
//! counts connections.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Program, Server, eventually};

const PAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts a service on all addresses of the host, which counts connections.
fn start_canary() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("[::]:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let hits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&hits);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream
                .map(|mut stream| stream.write_all(b"HTTP/1.0 200 OK\r\nAccess-Control-Allow-Origin: *\r\n\r\nsecret"));
        }
    });
    (port, hits)
}

#[test]
fn a_page_in_a_screenshot_reaches_only_its_own_sandbox() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let (sandbox, other) = (server.create(), server.create());
    let (port, hits) = start_canary();
    let api = &server.address;
    let other = format!("http://3000-{}.localhost:{}/", other.id, api.rsplit_once(':').expect("a port").1);
    let mut targets: Vec<String> = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::ffff:7f00:1]", "2130706433"]
        .map(|host| format!("http://{host}:{port}/"))
        .to_vec();
    targets.extend([format!("http://{api}/health"), format!("http://{api}/v2/sandboxes"), other]);
    targets.extend(["http://169.254.169.254/latest/", "file:///etc/passwd", "http://[fe80::1]/"].map(str::to_owned));
    let page = format!(
        "<!doctype html><title>attempts</title><p id=p>waiting</p><script>
        const targets = {};
        const socket = (url) => new Promise((done, fail) => {{ const s = new WebSocket(url.replace(/^http/, 'ws')); s.onopen = done; s.onerror = fail; }});
        const image = (url) => new Promise((done, fail) => Object.assign(new Image(), {{ onload: done, onerror: fail, src: url }}));
        const own = fetch('/own').then((answer) => answer.text());
        // A page cannot read the response of a beacon: the host's service counts it.
        const beacon = (url) => {{ navigator.sendBeacon(url); throw url; }};
        const get = (url) => fetch(url);
        const tries = targets.flatMap((url) => [get, image, socket, beacon].map((way) => Promise.resolve(url).then(way)));
        const peer = new RTCPeerConnection({{ iceServers: [{{ urls: 'stun:127.0.0.1:{port}' }}] }});
        peer.createDataChannel('x'); peer.createOffer().then((offer) => peer.setLocalDescription(offer));
        Promise.allSettled(tries).then(async (all) => {{
          document.title = [await own, all.length, all.filter((one) => one.status === 'fulfilled').length].join(' ');
        }});
        </script>",
        json!(targets)
    );
    assert_eq!(sandbox.write("/home/user/index.html", page.as_bytes()).status, 200);
    assert_eq!(sandbox.write("/home/user/own", b"own").status, 200);
    let tool = Program::new("tool").at(&server);
    let call = |name: &str, input: Value| tool.run(&[name, &input.to_string(), "--json", "--sandbox", &sandbox.id]);
    let started = call("bash", json!({ "command": "python3 -m http.server 3000", "run_in_background": true }));
    assert!(started.status.success(), "{started:?}");
    // On a busy machine the screenshot may be taken before the last attempt has failed.
    let result = eventually("the page tells of all attempts", PAGE_TIMEOUT, || {
        let shown = call("take_screenshot", json!({}));
        let result: Value = serde_json::from_slice(&shown.stdout).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
        (result["structured"]["title"] != "attempts").then_some(result)
    });
    // Every attempt failed. The control: the page reached its own sandbox.
    let title = format!("own {} 0", 4 * targets.len());
    assert_eq!(result["structured"]["title"], json!(title), "{result:#}");
    assert_eq!(hits.load(Ordering::SeqCst), 0, "the host was reached: {result:#}");
    for path in ["//evil.test/", "file:///etc/passwd", "http://127.0.0.1/", "javascript:1", "/\\evil.test"] {
        let refused = call("take_screenshot", json!({ "url_path": path }));
        assert!(!refused.status.success(), "{path}: {refused:?}");
    }
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("the control: the host reaches its own service");
}
