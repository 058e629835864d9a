//! TLS on the same listener: names, protocols, forwarding, and invalid handshakes.

use std::sync::Arc;

use crate::support::{KEY, SERVICE_PORT, Server, TIMEOUT, answer_as_service, edge_headers, text};
use bytes::Bytes;
use ca::Authority;
use http::{Request, Version, header};
use http_body_util::{BodyExt, Empty};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A connector that trusts only this server's authority.
fn connector(server: &Server, protocols: &[&str]) -> TlsConnector {
    let certificate = CertificateDer::from_pem_slice(server.authority.certificate_pem().as_bytes()).expect("PEM");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("an authority");
    let mut config = ClientConfig::builder_with_provider(ca::provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn connect(server: &Server, name: &str, protocols: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await.expect("the server listens");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    tokio::time::timeout(TIMEOUT, connector(server, protocols).connect(name, stream)).await.expect("in time")
}

fn get(uri: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let request = headers.iter().fold(Request::get(uri), |request, (name, value)| request.header(*name, *value));
    request.body(Empty::new()).expect("a request")
}

/// Sends one request over HTTP/1.1; returns the status and the body.
async fn ask(stream: TlsStream<TcpStream>, request: Request<Empty<Bytes>>) -> (u16, Bytes) {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let answer =
        tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.expect("in time").expect("an answer");
    let status = answer.status().as_u16();
    (status, answer.into_body().collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn every_served_name_is_served_over_tls() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base"})).await;
    let id = text(&made, "sandboxID");
    for name in ["localhost", "api.localhost", "127.0.0.1"] {
        let stream = connect(&server, name, &["http/1.1"]).await.expect(name);
        let (status, body) = ask(stream, get("/v2/sandboxes", &[("host", name), ("x-api-key", KEY)])).await;
        assert_eq!(status, 200, "{name}: {body:?}");
    }
    let host = format!("{SERVICE_PORT}-{id}.localhost");
    let stream = connect(&server, &host, &["http/1.1"]).await.expect("a handshake");
    let (status, body) = ask(stream, get("/page", &[("host", &host)])).await;
    let seen: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!((status, text(&seen, "uri"), &seen["headers"]["host"]), (200, "/page", &json!(host)));
    // Plain HTTP on the same port still works.
    assert_eq!(server.send("GET /page", &[("host", &host)], "").await.status, 200);
}

#[tokio::test]
async fn http2_is_agreed_upon() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base"})).await;
    let host = format!("{SERVICE_PORT}-{}.localhost", text(&made, "sandboxID"));
    let stream = connect(&server, &host, &["h2", "http/1.1"]).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    for path in ["one", "two"] {
        let answer = sender.send_request(get(&format!("https://{host}/{path}"), &[])).await.expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
        let seen: Value =
            serde_json::from_slice(&answer.into_body().collect().await.expect("a body").to_bytes()).expect("JSON");
        assert_eq!((text(&seen, "uri"), &seen["headers"]["host"]), (format!("/{path}").as_str(), &json!(host)));
    }
    // Clients without ALPN get HTTP/1.1.
    let stream = connect(&server, &host, &[]).await.expect("a handshake");
    assert_eq!(ask(stream, get("/", &[("host", &host)])).await.0, 200);
    connect(&server, &host, &["spdy/3"]).await.expect_err("nothing in common");
}

#[tokio::test]
async fn upload_links_have_the_scheme_and_port_of_the_request() {
    let server = Server::start().await;
    let made = server.call("POST /v3/templates", &json!({"name": "app"}).to_string()).await.json();
    let path = format!("/templates/{}/files/{}", text(&made, "templateID"), "ab".repeat(32));
    let host = format!("api.localhost:{}", server.address.port());
    let stream = connect(&server, "api.localhost", &["http/1.1"]).await.expect("a handshake");
    let (status, body) = ask(stream, get(&path, &[("host", &host), ("x-api-key", KEY)])).await;
    let link: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(status, 201, "{link}");
    assert!(text(&link, "url").starts_with(&format!("https://{host}{path}?token=")), "{link}");

    let plain = server.send(&format!("GET {path}"), &[("host", &host), ("x-api-key", KEY)], "").await.json();
    assert!(text(&plain, "url").starts_with(&format!("http://{host}{path}?token=")), "{plain}");
    // A proxy in front of the server terminated TLS.
    let headers = [("host", "box.example"), ("x-api-key", KEY), ("x-forwarded-proto", "https")];
    let forwarded = server.send(&format!("GET {path}"), &headers, "").await.json();
    assert!(text(&forwarded, "url").starts_with(&format!("https://box.example{path}?token=")), "{forwarded}");
}

#[tokio::test]
async fn upgrades_pass_through_tls() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base"})).await;
    let host = format!("{SERVICE_PORT}-{}.localhost", text(&made, "sandboxID"));
    let stream = connect(&server, &host, &["http/1.1"]).await.expect("a handshake");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection.with_upgrades());
    let request = get("/ws", &[("host", &host), ("connection", "Upgrade"), ("upgrade", "echo")]);
    let answer = sender.send_request(request).await.expect("an answer");
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[header::UPGRADE]),
        (101, &"echo".parse().expect("a value"))
    );
    let mut tunnel = TokioIo::new(hyper::upgrade::on(answer).await.expect("an upgrade"));
    let big = vec![7; 300_000];
    let (mut reading, mut writing) = tokio::io::split(&mut tunnel);
    let mut back = vec![0; big.len()];
    let both = async { tokio::join!(writing.write_all(&big), reading.read_exact(&mut back)) };
    let (written, read) = tokio::time::timeout(TIMEOUT, both).await.expect("in time");
    written.and(read).expect("all of it");
    assert_eq!(back, big);
}

#[tokio::test]
async fn names_that_are_not_served_are_not_signed_for() {
    let server = Server::start().await;
    for name in ["example.com", "localhost.example", "notlocalhost"] {
        let error = connect(&server, name, &["h2"]).await.expect_err(name).to_string();
        assert!(error.contains("alert"), "the client is told: {error}");
    }
    connect(&server, "localhost", &["h2"]).await.expect("others are served as before");
}

#[tokio::test]
async fn invalid_handshakes_do_not_affect_other_clients() {
    let server = Server::start().await;
    let mut idle = Vec::new();
    for rubbish in [&b"\x16"[..], b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00"] {
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        stream.write_all(rubbish).await.expect("it is sent");
        idle.push(stream); // Held open without sending more.
    }
    for rubbish in [&b"\x16GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01\x00\x05hello", &[0x16; 70_000]] {
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        // The server may close before everything was sent.
        let _ = stream.write_all(rubbish).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("it hangs up");
        assert!(ended.is_err() || answer.first().is_none_or(|first| *first == 0x15), "an alert at most: {answer:?}");
    }
    connect(&server, "localhost", &["h2"]).await.expect("others are served as before");
}

#[tokio::test]
async fn services_that_speak_tls_themselves_are_reached() {
    const SECURED: u16 = 8443;
    let server = Server::start().await;
    // The server does not know who signed the service's certificate.
    let directory = tempfile::tempdir().expect("a directory");
    let own = Arc::new(Authority::open(directory.path(), "Somebody else", &[]).expect("an authority"));
    let leaf = own.issue_leaf("service.test").expect("a leaf");
    let shown = tokio_rustls::rustls::sign::SingleCertAndKey::from((*leaf).clone());
    let acceptor = TlsAcceptor::from(Arc::new(ca::server_config(Arc::new(shown), &[b"http/1.1"])));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    server.engine.open_port(SECURED, listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let served = hyper::server::conn::http1::Builder::new();
                // A client that disconnects is no failure of the service.
                let _ = served.serve_connection(TokioIo::new(stream), service_fn(answer_as_service)).await;
            });
        }
    });
    let network = json!({"httpsPorts": [SECURED, SECURED, SERVICE_PORT], "maskRequestHost": "${PORT}-app.test"});
    let made = server.create(json!({"templateID": "base", "network": network})).await;
    let id = text(&made, "sandboxID");
    let seen = server.edge(id, SECURED, "GET /x").await.json();
    assert_eq!((text(&seen, "uri"), &seen["headers"]["host"]), ("/x", &json!("8443-app.test")));
    let answer = server.edge(id, SERVICE_PORT, "GET /").await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(text(&answer.json(), "message").contains("does not speak TLS"), "{}", answer.text());
    // The server returns the requested settings.
    let detail = server.call(&format!("GET /sandboxes/{id}"), "").await.json();
    assert_eq!(detail["network"]["httpsPorts"], json!([SERVICE_PORT, SECURED]));
    assert_eq!(detail["network"]["maskRequestHost"], "${PORT}-app.test");
    // Without `httpsPorts` the edge speaks plain HTTP to such a service, which closes the
    // connection.
    let plain = server.create(json!({"templateID": "base"})).await;
    let answer = server.edge(text(&plain, "sandboxID"), SECURED, "GET /").await;
    assert_eq!(answer.status, 502, "{}", answer.text());
}

#[tokio::test]
async fn services_see_the_masked_host() {
    let server = Server::start().await;
    let made = server.create(json!({"templateID": "base", "network": {"maskRequestHost": "localhost:${PORT}"}})).await;
    let id = text(&made, "sandboxID");
    let seen = server.edge(id, SERVICE_PORT, "GET /").await.json();
    assert_eq!(seen["headers"]["host"], format!("localhost:{SERVICE_PORT}"));
    let called = format!("{SERVICE_PORT}-{id}.localhost");
    let mut headers = edge_headers(id, "49983").to_vec();
    headers.push(("host", "localhost"));
    assert_eq!(
        server.send("GET /", &headers, "").await.json()["headers"]["host"],
        "localhost",
        "the guest is not masked"
    );
    let seen = server.send("GET /", &[("host", &called)], "").await.json();
    assert_eq!(seen["headers"]["host"], format!("localhost:{SERVICE_PORT}"));
}
