//! The complete HTTP interface on a real listener, over a node whose machines are tasks: a guest on
//! a unix socket, and one service that represents any program on port 3000 of a sandbox.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ca::Authority;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use node::memory::{MemoryEngine, MemoryRecords};
use node::{Node, SandboxesConfig, SystemClock};
use parking_lot::Mutex;
use sandbar_api::{ApiConfig, Fallback, serve};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_util::sync::CancellationToken;

pub(crate) const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
/// The port of the service in every sandbox.
pub(crate) const SERVICE_PORT: u16 = 3000;
/// Most connections of one server.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// Longest wait for anything that must happen.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) authority: Arc<Authority>,
    pub(crate) engine: Arc<MemoryEngine>,
    pub(crate) node: Arc<Node>,
    pub(crate) seen: Arc<Mutex<HashMap<String, Seen>>>,
    stop: CancellationToken,
    _directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What the guest of one sandbox has received.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: usize,
    /// Requests that are never answered.
    pub(crate) hanging: usize,
}

type Sightings = Arc<Mutex<HashMap<String, Seen>>>;

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).expect("text")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(SandboxesConfig::default(), true).await
    }

    pub(crate) async fn with(sandboxes: SandboxesConfig, extensions: bool) -> Self {
        Self::with_fallback(sandboxes, extensions, Fallback::default()).await
    }

    /// A server with a fallback service.
    pub(crate) async fn with_fallback(sandboxes: SandboxesConfig, extensions: bool, fallback: Fallback) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let seen = Sightings::default();
        let noting = Arc::clone(&seen);
        let engine = Arc::new(MemoryEngine::new(directory.path(), move |listener, config, ended| {
            tokio::spawn(run_guest(listener, config.sandbox_id, ended, Arc::clone(&noting)));
        }));
        let service = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        engine.open_port(SERVICE_PORT, service.local_addr().expect("an address"));
        let stop = CancellationToken::new();
        tokio::spawn(run_service(service, stop.clone()));
        let node = Node::open_with(
            engine.clone(),
            Arc::new(MemoryRecords::default()),
            Arc::new(SystemClock),
            sandboxes,
            &directory.path().join("uploads"),
        )
        .await
        .expect("the node opens");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let authority =
            Authority::open(&directory.path().join("authority"), "Sandbar test", &[]).expect("an authority");
        let authority = Arc::new(authority);
        let config = ApiConfig {
            api_key: KEY.to_owned(),
            domain: format!("localhost:{}", address.port()),
            dashboard_host: None,
            extensions,
            authority: Some(Arc::clone(&authority)),
            max_connections: MAX_CONNECTIONS,
            max_connections_per_address: MAX_CONNECTIONS,
        };
        tokio::spawn(serve(listener, Arc::clone(&node), config, fallback, stop.clone()));
        Self { address, authority, engine, node, seen, stop, _directory: directory }
    }

    /// Sends one request on a new connection and returns the response before its body.
    pub(crate) async fn open(
        &self,
        line: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let (method, path) = line.split_once(' ').expect("METHOD PATH");
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header(header::HOST, self.address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let stream = TcpStream::connect(self.address).await.expect("the server listens");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection.with_upgrades());
        let request = request.body(Full::new(body.into())).expect("a request");
        tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.expect("in time").expect("an answer")
    }

    /// Sends one request and reads the complete response.
    pub(crate) async fn send(&self, line: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let (parts, body) = self.open(line, headers, body).await.into_parts();
        let body = tokio::time::timeout(TIMEOUT, body.collect()).await.expect("in time").expect("a whole body");
        Answer { status: parts.status, headers: parts.headers, body: body.to_bytes() }
    }

    /// A call of the control plane, with the key.
    pub(crate) async fn call(&self, line: &str, body: &str) -> Answer {
        self.send(line, &[("x-api-key", KEY)], body.to_owned()).await
    }

    /// Creates a sandbox with API version 2 and returns the response's body.
    pub(crate) async fn create(&self, body: Value) -> Value {
        let answer = self.call("POST /v2/sandboxes", &body.to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    }

    /// A request to a port of a sandbox, routed by headers.
    pub(crate) async fn edge(&self, id: &str, port: u16, line: &str) -> Answer {
        self.send(line, &edge_headers(id, &port.to_string()), "").await
    }
}

pub(crate) fn edge_headers<'a>(id: &'a str, port: &'a str) -> [(&'static str, &'a str); 2] {
    [("e2b-sandbox-id", id), ("e2b-sandbox-port", port)]
}

pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is a text in {value}"))
}

pub(crate) type Body = BoxBody<Bytes, Infallible>;

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed()
}

/// One event, then nothing.
fn endless() -> Body {
    use futures::StreamExt;
    let first = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"data: first\n\n")))]);
    BodyExt::boxed(StreamBody::new(first.chain(futures::stream::pending())))
}

async fn run_guest(listener: UnixListener, id: String, ended: CancellationToken, seen: Sightings) {
    while let Some(Ok((stream, _))) = ended.run_until_cancelled(listener.accept()).await {
        seen.lock().entry(id.clone()).or_default().connections += 1;
        let (id, ended, seen) = (id.clone(), ended.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            let service = service_fn(|request| answer_as_guest(request, &id, &seen));
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that disconnects is no failure of the guest.
            let _ = ended.run_until_cancelled(connection).await;
        });
    }
}

async fn answer_as_guest(request: Request<Incoming>, id: &str, seen: &Sightings) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let response = match path.as_str() {
        "/health" => Response::builder().status(204).body(full("")),
        "/stream" => Response::builder().header(header::CONTENT_TYPE, "text/event-stream").body(endless()),
        "/hang" => {
            seen.lock().entry(id.to_owned()).or_default().hanging += 1;
            std::future::pending().await
        }
        "/echo" => {
            let body = request.into_body();
            return Ok(Response::new(body.map_err(|error| panic!("{error}")).boxed()));
        }
        "/sandbar/log" => Response::builder().body(full(
            json!([{"seq": 1, "unixMs": 5, "level": "warn", "message": "from the guest", "fields": {"a": "b"}}])
                .to_string(),
        )),
        "/sandbar/lease" => Response::builder().status(204).body(full("")),
        _ => Response::builder().body(full(describe(&request, id))),
    };
    Ok(response.expect("a response"))
}

/// The request as it arrived.
fn describe<B>(request: &Request<B>, at: &str) -> String {
    let headers: HashMap<String, String> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    json!({"at": at, "method": request.method().as_str(), "uri": request.uri().to_string(), "headers": headers})
        .to_string()
}

async fn run_service(listener: TcpListener, stop: CancellationToken) {
    while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer_as_service))
                .with_upgrades();
            // A client that disconnects is no failure of the service.
            let _ = connection.await;
        });
    }
}

pub(crate) async fn answer_as_service<B>(mut request: Request<B>) -> Result<Response<Body>, Infallible> {
    let response = match request.uri().path() {
        "/sse" => Response::builder().header(header::CONTENT_TYPE, "text/event-stream").body(endless()),
        "/ws" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut io = TokioIo::new(upgrade.await.expect("an upgrade"));
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = io.read(&mut buffer).await {
                    if io.write_all(&buffer[..count]).await.is_err() {
                        break;
                    }
                }
            });
            let answer = Response::builder().status(101).header(header::CONNECTION, "Upgrade");
            answer.header(header::UPGRADE, "echo").body(full(""))
        }
        _ => Response::builder().body(full(describe(&request, "service"))),
    };
    Ok(response.expect("a response"))
}
