//! The edge: routing, streams, upgrades and refusals.

use std::time::Duration;

use crate::support::{KEY, SERVICE_PORT, Server, TIMEOUT, edge_headers, text};
use base64::Engine as _;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::signature::{Claim, Operation};
use serde_json::{Value, json};
use testing::{SOON, eventually_async};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const GUEST: u16 = 49983;
const BROWSER: (&str, &str) = ("user-agent", "Mozilla/5.0");

async fn sandbox(server: &Server) -> String {
    text(&server.create(json!({"templateID": "base"})).await, "sandboxID").to_owned()
}

/// The next frame of a stream that must continue.
async fn frame(body: &mut Incoming) -> Result<Bytes, hyper::Error> {
    let frame = tokio::time::timeout(TIMEOUT, body.frame()).await.expect("in time").expect("the stream goes on");
    frame.map(|frame| frame.into_data().expect("data"))
}

#[tokio::test]
async fn headers_and_hosts_lead_to_guest_and_service() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    assert_eq!(server.edge(&id, GUEST, "GET /health").await.status, 204);
    let seen = server.edge(&id, GUEST, "GET /some%2Fpath?q=%20x").await.json();
    assert_eq!((text(&seen, "at"), text(&seen, "uri")), (id.as_str(), "/some%2Fpath?q=%20x"));

    let seen = server.edge(&id, SERVICE_PORT, "DELETE /x").await.json();
    assert_eq!((text(&seen, "at"), text(&seen, "method")), ("service", "DELETE"));

    let host = format!("{SERVICE_PORT}-{id}.localhost:{}", server.address.port());
    let seen = server.send("GET /", &[("host", &host)], "").await.json();
    assert_eq!(seen["headers"]["host"], host.as_str(), "the service sees the name it was called by");
    let guest = format!("{GUEST}-{id}.localhost");
    assert_eq!(server.send("GET /health", &[("host", &guest)], "").await.status, 204);

    // Responses of a service without caching headers must not be cached; those of the guest are not
    // changed.
    assert_eq!(server.edge(&id, SERVICE_PORT, "GET /").await.header("cache-control"), Some("no-store"));
    assert_eq!(server.edge(&id, GUEST, "GET /health").await.header("cache-control"), None);
}

#[tokio::test]
async fn headers_of_the_server_are_removed() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let port = SERVICE_PORT.to_string();
    let headers = [
        ("e2b-sandbox-id", id.as_str()),
        ("e2b-sandbox-port", &port),
        ("x-api-key", KEY),
        ("x-access-token", "theirs"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-end", "2"),
    ];
    let seen = server.send("GET /", &headers, "").await.json();
    let arrived = seen["headers"].as_object().expect("headers");
    for gone in ["x-api-key", "e2b-sandbox-id", "e2b-sandbox-port", "x-hop", "connection"] {
        assert!(!arrived.contains_key(gone), "{gone}");
    }
    assert_eq!((&seen["headers"]["x-end"], &seen["headers"]["x-access-token"]), (&json!("2"), &json!("theirs")));
}

#[tokio::test]
async fn refusals_have_their_exact_form() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let not_found = |id: &str| json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502});
    let answer = server.edge("iunknown", GUEST, "GET /health").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (502, not_found("iunknown")));
    assert_eq!(answer.text(), r#"{"sandboxId":"iunknown","message":"The sandbox was not found","code":502}"#);

    let answer = server.edge(&id, 4444, "GET /").await;
    let closed =
        json!({"sandboxId": id, "message": "The sandbox is running but port is not open", "port": 4444, "code": 502});
    assert_eq!((answer.status.as_u16(), answer.json()), (502, closed));

    for path in ["/init", "/freeze", "/upgrade", "/sandbar/lease", "/sandbar/log?after=0", "/%69nit", "//init"] {
        let answer = server.edge(&id, GUEST, &format!("POST {path}")).await;
        let body = answer.json();
        assert_eq!((answer.status.as_u16(), &body["code"]), (404, &json!(404)), "{path}");
        assert!(body["message"].is_string() && body["path"].is_string(), "{path}");
    }
    assert_eq!(server.edge(&id, SERVICE_PORT, "POST /init").await.status, 200, "services may have such paths");

    for headers in [vec![("e2b-sandbox-id", id.as_str())], vec![("e2b-sandbox-port", "1")]] {
        let answer = server.send("GET /", &headers, "").await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (400, "missing header"));
    }
    let answer = server.send("GET /", &[("host", "80-iabc")], "").await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (400, "Invalid host"));

    let page = server.send("GET /", &[("host", "80-iabc.localhost"), BROWSER], "").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.status == 502 && page.text().contains("The sandbox was not found"));
    let page = server.send("GET /", &[("host", &format!("4444-{id}.localhost")), BROWSER], "").await;
    assert!(page.status == 502 && page.text().contains("Nothing listens on port 4444"), "{}", page.text());
    assert_eq!(page.header("cache-control"), Some("no-store"));
    for outside in ["http:", "https:", "src=", "<script", "url("] {
        assert!(!page.text().contains(outside), "the page fetches nothing: {outside}");
    }

    for how in ["pause", "kill"] {
        let line =
            if how == "pause" { format!("POST /sandboxes/{id}/pause") } else { format!("DELETE /sandboxes/{id}") };
        assert_eq!(server.call(&line, "").await.status, 204);
        for port in [GUEST, SERVICE_PORT] {
            let answer = server.edge(&id, port, "GET /health").await;
            assert_eq!((answer.status.as_u16(), answer.json()), (502, not_found(&id)), "{how}");
        }
        // People get more detail than programs, which get one message for both.
        let page = server.send("GET /", &[("host", &format!("80-{id}.localhost")), BROWSER], "").await;
        let title = if how == "pause" { "The sandbox is asleep" } else { "The sandbox was not found" };
        assert!(page.status == 502 && page.text().contains(title), "{how}: {}", page.text());
    }
}

#[tokio::test]
async fn streams_pass_as_they_come_and_break_when_the_sandbox_goes() {
    let server = Server::start().await;
    for (port, path) in [(GUEST, "/stream"), (SERVICE_PORT, "/sse")] {
        for how in ["kill", "pause", "files", "crash"] {
            let id = sandbox(&server).await;
            let text = port.to_string();
            let response = server.open(&format!("GET {path}"), &edge_headers(&id, &text), "").await;
            let mut body = response.into_body();
            assert_eq!(frame(&mut body).await.expect("the first event"), "data: first\n\n");
            let guest = edge_headers(&id, "49983");
            let waiting = server.open("GET /hang", &guest, "");
            let (line, json) = match how {
                "kill" => (format!("DELETE /sandboxes/{id}"), ""),
                "pause" => (format!("POST /sandboxes/{id}/pause"), ""),
                _ => (format!("POST /sandboxes/{id}/pause"), r#"{"memory":false}"#),
            };
            let change = async {
                eventually_async("the guest has the request", SOON, async || {
                    (server.seen.lock().get(&id).is_some_and(|seen| seen.hanging == 1)).then_some(())
                })
                .await;
                if how == "crash" {
                    server.engine.crash(&id.parse().expect("an ID"));
                } else {
                    assert_eq!(server.call(&line, json).await.status, 204);
                }
            };
            let (unanswered, ()) = tokio::join!(waiting, change);
            assert_eq!(unanswered.status(), 502, "{how}: what waits for an answer is told");
            assert!(frame(&mut body).await.is_err(), "{how} {path}: broken, not ended");
            let probe = eventually_async("the edge knows", SOON, async || {
                let answer = server.edge(&id, GUEST, "GET /health").await;
                (answer.status == 502).then_some(answer)
            })
            .await;
            assert!(probe.text().contains("was not found"), "{how}: {}", probe.text());
        }
    }
}

#[tokio::test]
async fn a_broken_stream_is_a_reset_connection() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let mut client = TcpStream::connect(server.address).await.expect("the server listens");
    let head = format!("GET /stream HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: {GUEST}\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("sent");
    let mut seen = Vec::new();
    while !seen.ends_with(b"data: first\n\n\r\n") {
        assert_ne!(client.read_buf(&mut seen).await.expect("an answer"), 0, "{}", String::from_utf8_lossy(&seen));
    }
    assert_eq!(server.call(&format!("DELETE /sandboxes/{id}"), "").await.status, 204);
    let end = tokio::time::timeout(TIMEOUT, client.read_buf(&mut seen)).await.expect("in time");
    assert_eq!(end.expect_err("no orderly end").kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn requests_wait_for_the_end_of_a_change() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let held = server.engine.hold_freezes().await;
    let line = format!("POST /sandboxes/{id}/pause");
    let pause = server.call(&line, "");
    let probe = async {
        eventually_async("the pause has begun", SOON, async || {
            (server.call(&format!("GET /sandboxes/{id}"), "").await.json()["state"] == "paused").then_some(())
        })
        .await;
        let waiting = server.edge(&id, GUEST, "GET /health");
        let release = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(held);
        };
        tokio::join!(waiting, release).0
    };
    let (paused, probe) = tokio::join!(pause, probe);
    assert_eq!((paused.status.as_u16(), probe.status.as_u16()), (204, 502));
    assert_eq!(probe.json()["message"], "The sandbox was not found");
}

#[tokio::test]
async fn refused_uploads_are_answered_however_large() {
    let server = Server::start().await;
    let content = Bytes::from(vec![0; 32 << 20]);
    for (line, headers, status) in [
        ("POST /files", edge_headers("inone", "49983").to_vec(), 502),
        ("POST /files?path=x&signature=forged", vec![], 401),
        ("POST /api-keys", vec![("x-api-key", KEY)], 501),
        ("POST /v2/sandboxes", vec![], 401),
        ("POST /files", vec![("e2b-sandbox-id", "inone")], 400),
    ] {
        // Like SDKs, the client reads the response only after it has sent everything.
        let mut client = TcpStream::connect(server.address).await.expect("the server listens");
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n{headers}\r\n", content.len());
        client.write_all(head.as_bytes()).await.expect("the head is sent");
        client.write_all(&content).await.unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut answer = vec![0; 12];
        client.read_exact(&mut answer).await.unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"), "{line}");
    }
}

#[tokio::test]
async fn a_token_alone_leads_to_its_guest() {
    let server = Server::start().await;
    let (made, other) = (server.create(json!({"templateID": "base"})).await, sandbox(&server).await);
    let (id, token) = (text(&made, "sandboxID"), [("x-access-token", text(&made, "envdAccessToken"))]);
    let seen = server.send("GET /files?path=x", &token, "").await.json();
    assert_eq!(text(&seen, "at"), id);
    assert_eq!(server.send("GET /health", &token, "").await.status, 204);
    assert_eq!(server.send("POST /init", &token, "").await.status, 404, "control routes stay inside");
    assert_eq!(server.call(&format!("DELETE /sandboxes/{id}"), "").await.status, 204);
    let gone = server.send("GET /health", &token, "").await;
    assert_eq!(gone.status, 502);
    assert!(text(&gone.json(), "message").contains("was not found"), "{}", gone.text());
    assert_eq!(server.edge(&other, GUEST, "GET /health").await.status, 204);
}

#[tokio::test]
async fn uploads_and_downloads_pass_whole() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let content: Bytes = (0..8_000_000_u32).map(|index| (index % 251) as u8).collect::<Vec<_>>().into();
    let answer = server.send("POST /echo", &edge_headers(&id, "49983"), content.clone()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.body == content);
}

#[tokio::test]
async fn connections_to_guests_are_used_again() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    for _ in 0..50 {
        let request = Request::builder()
            .uri("/x")
            .header("host", "localhost")
            .header("e2b-sandbox-id", &id)
            .header("e2b-sandbox-port", "49983")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let answer = sender.send_request(request).await.expect("an answer");
        answer.into_body().collect().await.expect("a body");
        sender.ready().await.expect("the connection stays");
    }
    let made = server.seen.lock()[&id].connections;
    assert!(made < 10, "50 requests took {made} connections");
}

#[tokio::test]
async fn upgrades_become_tunnels() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let port = SERVICE_PORT.to_string();
    let headers =
        [("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", &port), ("connection", "Upgrade"), ("upgrade", "echo")];
    let response = server.open("GET /ws", &headers, "").await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "echo");
    let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.expect("an upgrade"));
    let mut buffer = [0; 5];
    for word in [b"hello", b"again"] {
        tunnel.write_all(word).await.expect("it is sent");
        tokio::time::timeout(TIMEOUT, tunnel.read_exact(&mut buffer)).await.expect("in time").expect("it comes back");
        assert_eq!(&buffer, word);
    }
    assert_eq!(server.call(&format!("DELETE /sandboxes/{id}"), "").await.status, 204);
    let end = tokio::time::timeout(TIMEOUT, tunnel.read(&mut buffer)).await.expect("in time");
    assert!(matches!(end, Ok(0) | Err(_)), "the tunnel ends with the sandbox");
}

#[tokio::test]
async fn private_traffic_needs_its_token() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base", "network": {"allowPublicTraffic": false}})).await;
    let (id, token) = (text(&made, "sandboxID"), text(&made, "trafficAccessToken"));
    let port = SERVICE_PORT.to_string();
    let with = async |token: Option<&str>| {
        let mut headers = edge_headers(id, &port).to_vec();
        headers.extend(token.map(|token| ("e2b-traffic-access-token", token)));
        server.send("GET /", &headers, "").await
    };
    for token in [None, Some("wrong")] {
        let answer = with(token).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (403, &json!(403)));
        assert_eq!(answer.json()["sandboxId"], id);
    }
    let page = server.send("GET /", &[("host", &format!("{port}-{id}.localhost")), BROWSER], "").await;
    assert!(page.status == 403 && page.text().contains("The sandbox is private"), "{}", page.text());
    let answer = with(Some(token)).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.text().contains(token), "the service does not learn the token");
    assert_eq!(server.edge(id, GUEST, "GET /health").await.status, 204, "the guest has a token of its own");
}

#[tokio::test]
async fn traffic_resumes_sandboxes_with_auto_resume() {
    let server = Server::start().await;
    let body = json!({"templateID": "base", "autoPause": true, "autoResume": {"enabled": true}});
    let made = server.create(body).await;
    let (id, token) = (text(&made, "sandboxID").to_owned(), text(&made, "envdAccessToken"));
    for (port, status) in [(SERVICE_PORT, 200), (GUEST, 204)] {
        assert_eq!(server.call(&format!("POST /sandboxes/{id}/pause"), "").await.status, 204);
        let port = port.to_string();
        let headers = [&edge_headers(&id, &port)[..], &[("x-access-token", token)]].concat();
        assert_eq!(server.send("GET /health", &headers, "").await.status, status);
        assert_eq!(server.call(&format!("GET /sandboxes/{id}"), "").await.json()["state"], "running");
    }
    assert_eq!(server.call(&format!("POST /sandboxes/{id}/pause"), r#"{"memory":false}"#).await.status, 204);
    assert_eq!(server.edge(&id, GUEST, "GET /health").await.status, 502, "without memory it sleeps on");
}

#[tokio::test]
async fn signed_urls_find_their_sandbox() {
    let server = Server::start().await;
    let made = [server.create(json!({"templateID": "base"})).await, server.create(json!({"templateID": "base"})).await];
    let url = |made: &Value, operation, expiration: Option<i64>, user: &str| {
        let claim = Claim { path: "/home/user/a b.txt", operation, username: user, expiration };
        let signature = claim.sign(text(made, "envdAccessToken")).replace('+', "%2B").replace('/', "%2F");
        let user = if user.is_empty() { String::new() } else { format!("&username={user}") };
        let expiration = expiration.map(|end| format!("&signature_expiration={end}")).unwrap_or_default();
        format!("/files?path=%2Fhome%2Fuser%2Fa+b.txt{user}&signature={signature}{expiration}")
    };
    let later = 4_000_000_000;
    for made in &made {
        for (line, operation, end, user) in [
            ("GET", Operation::Read, None, ""),
            ("GET", Operation::Read, Some(later), "root"),
            ("POST", Operation::Write, Some(later), ""),
        ] {
            let answer = server.send(&format!("{line} {}", url(made, operation, end, user)), &[], "").await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["at"], made["sandboxID"]);
        }
    }
    let refused = |message: &str| (401, json!({"code": 401, "message": message}));
    for (line, expected) in [
        (format!("GET {}", url(&made[0], Operation::Read, Some(1), "")), refused("signature is already expired")),
        (format!("GET {}", url(&made[0], Operation::Write, None, "")), refused("invalid signature")),
        (format!("GET {}0", url(&made[0], Operation::Read, Some(later), "")), refused("invalid signature")),
        ("GET /files?path=a&signature=v1_x&signature_expiration=1".to_owned(), refused("invalid signature")),
        ("GET /files?path=a".to_owned(), refused("missing signature query parameter")),
    ] {
        let answer = server.send(&line, &[], "").await;
        assert_eq!((answer.status.as_u16(), answer.json()), expected, "{line}");
    }
    let expired = server.send(&format!("GET {}", url(&made[0], Operation::Read, Some(1), "")), &[], "").await;
    assert_eq!(expired.text(), r#"{"code":401,"message":"signature is already expired"}"#);
}

#[tokio::test]
async fn preflight_requests_are_answered() {
    let server = Server::start().await;
    let asked = [
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type,e2b-sandbox-id,e2b-sandbox-port,x-access-token"),
    ];
    let answer = server.send("OPTIONS /process.Process/Start", &asked, "").await;
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert!(answer.header("access-control-allow-headers").is_some_and(|headers| headers.contains("x-access-token")));
    assert_eq!(answer.header("access-control-max-age"), Some("7200"));
    assert_eq!(server.send("OPTIONS /v2/sandboxes", &asked[..2], "").await.status, 401, "not for the control plane");
}

#[tokio::test]
async fn old_sdks_send_routing_headers_with_control_calls() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let mut headers = edge_headers(&id, "49983").to_vec();
    headers.push(("x-api-key", KEY));
    let answer = server.send(&format!("POST /sandboxes/{id}/connect"), &headers, r#"{"timeout":300}"#).await;
    assert_eq!((answer.status.as_u16(), answer.json()["sandboxID"].clone()), (200, json!(id)));
}

#[tokio::test]
async fn cleartext_http2_is_understood() {
    let server = Server::start().await;
    let id = sandbox(&server).await;
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let executor = TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let uri = format!("http://{SERVICE_PORT}-{id}.localhost/two");
    let request = Request::builder().uri(uri).body(Empty::<Bytes>::new()).expect("a request");
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let seen: Value =
        serde_json::from_slice(&answer.into_body().collect().await.expect("a body").to_bytes()).expect("JSON");
    assert_eq!(
        (text(&seen, "uri"), &seen["headers"]["host"]),
        ("/two", &json!(format!("{SERVICE_PORT}-{id}.localhost")))
    );

    let uri = format!("http://{GUEST}-{id}.localhost/stream");
    let request = Request::builder().uri(uri).body(Empty::<Bytes>::new()).expect("a request");
    let mut body = sender.send_request(request).await.expect("an answer").into_body();
    assert_eq!(frame(&mut body).await.expect("the first event"), "data: first\n\n");
    assert_eq!(server.call(&format!("DELETE /sandboxes/{id}"), "").await.status, 204);
    assert!(frame(&mut body).await.is_err(), "the stream is reset");
}

#[test]
fn the_signature_under_test_is_the_published_one() {
    // Guards the tests above against a signature that is wrong on both sides.
    let claim = Claim { path: "/home/user/a.txt", operation: Operation::Read, username: "", expiration: None };
    let signature = claim.sign("envdtok");
    let digest = base64::engine::general_purpose::STANDARD_NO_PAD.decode(&signature[3..]).expect("base64");
    assert_eq!((digest.len(), signature.as_str()), (32, "v1_RXoTfv8fZov6wEk3x1MtXvBzDRAir30QpELBhgDwaYY"));
}

/// A service that responds with the bytes of the request's head, under header names in its own
/// spelling.
async fn open_raw_service(server: &Server, port: u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    server.engine.open_port(port, listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a whole head"));
            }
            let answer = format!("HTTP/1.1 200 OK\r\nX-AnsWer: 1\r\nContent-LENGTH: {}\r\n\r\n", head.len());
            stream.write_all(&[answer.as_bytes(), &head].concat()).await.expect("the edge reads");
        }
    });
}

#[tokio::test]
async fn header_names_keep_their_spelling_both_ways() {
    const RAW: u16 = 7000;
    let server = Server::start().await;
    let id = sandbox(&server).await;
    open_raw_service(&server, RAW).await;
    let host = format!("{RAW}-{id}.localhost");
    let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
    let request = format!(
        "GET /x HTTP/1.1\r\nHost: {host}\r\nX-MiXeD: 1\r\nx-mixed: 2\r\nE2B-Sandbox-Port: 1\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
    let (head, seen) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains("\r\nX-AnsWer: 1\r\nContent-LENGTH: "), "{head}");
    assert_eq!(seen, format!("GET /x HTTP/1.1\r\nHost: {host}\r\nX-MiXeD: 1\r\nx-mixed: 2\r\n\r\n"));

    // HTTP/2 has lower-case names only; services get the usual spelling.
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::get(format!("http://{host}/y")).header("x-some-name", "1").body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.headers()["x-answer"], "1");
    let seen = answer.into_body().collect().await.expect("a body").to_bytes();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains(&format!("\r\nHost: {host}\r\n")) && seen.contains("\r\nX-Some-Name: 1\r\n"), "{seen}");
}
