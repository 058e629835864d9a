//! The HTTP face: which path leads where, for whom, and what browsers may do.

mod access;
pub(crate) mod caller;
mod control;
mod query;
mod reply;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use connectrpc::{Chain, ConnectRpcBody, ConnectRpcService, Limits};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONNECTION, ORIGIN, VARY,
};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use protocol::guest::{CONTROL_PREFIX, INIT_PATH, INTERPRETER_PREFIX};
use protocol::headers::CONNECT_TIMEOUT_MS;
use protocol::rpc::filesystem::FilesystemServer;
use protocol::rpc::process::ProcessServer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tower::Service;

pub(crate) use self::access::{check_files, check_token};
pub(crate) use self::control::read as read_json;
pub(crate) use self::query::Query;
use self::reply::never;
pub(crate) use self::reply::{Body, HttpError, Reply, bytes, empty, json};
use crate::filesystem::FilesystemService;
use crate::process::ProcessService;
use crate::state::Guest;
use crate::streams::CallTimeout;
use crate::{files, interpreter, metrics};

/// The largest RPC message: a big paste into a terminal, far from a file upload.
const LARGEST_MESSAGE: usize = 64 << 20;
/// A pause after a failed accept; it fails for as long as descriptors are short.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

type Rpc = ConnectRpcService<Chain<ProcessServer<ProcessService>, FilesystemServer<FilesystemService>>>;

/// Where a connection comes from. The control routes are the host's alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Inside,
}

/// Serves the host for as long as the guest lives.
pub(crate) async fn serve_host(guest: Arc<Guest>, listener: UnixListener) {
    let face = Face::new(guest, Side::Host);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => face.connection(stream),
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Serves code inside the sandbox that expects envd at its usual port.
pub(crate) async fn serve_inside(guest: Arc<Guest>, listener: TcpListener) {
    let face = Face::new(guest, Side::Inside);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => face.connection(stream),
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

#[derive(Clone)]
struct Face {
    guest: Arc<Guest>,
    side: Side,
    rpc: Rpc,
}

impl Face {
    fn new(guest: Arc<Guest>, side: Side) -> Self {
        let services = Chain(
            ProcessServer::new(ProcessService(Arc::clone(&guest))),
            FilesystemServer::new(FilesystemService(Arc::clone(&guest))),
        );
        let limits =
            Limits::default().with_max_request_body_size(LARGEST_MESSAGE).with_max_message_size(LARGEST_MESSAGE);
        Self { guest, side, rpc: ConnectRpcService::new(services).with_limits(limits) }
    }

    /// A connection lives as long as its client wants; it owns nothing that outlives it.
    fn connection(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let face = self.clone();
        let service = service_fn(move |request| {
            let face = face.clone();
            async move { Ok::<_, Infallible>(face.answer(request).await) }
        });
        tokio::spawn(async move {
            // A broken connection is the client's way to leave.
            let _left = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }

    async fn answer(mut self, request: Request<Incoming>) -> Reply {
        let from_page = request.headers().contains_key(ORIGIN);
        let has_body = !request.body().is_end_stream();
        let mut reply = match preflight(&request) {
            Some(reply) => reply,
            None => self.dispatch(request).await.unwrap_or_else(|refusal| refusal.reply()),
        };
        if has_body && (reply.status().is_client_error() || reply.status().is_server_error()) {
            // Who refuses may not have read all of it. Then hyper hangs up after the answer, which the next request must not meet.
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if from_page {
            let headers = reply.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        }
        reply
    }

    async fn dispatch(&mut self, request: Request<Incoming>) -> Result<Reply, HttpError> {
        let guest = &self.guest;
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if let Some(path) = path.strip_prefix(INTERPRETER_PREFIX)
            && self.side == Side::Host
        {
            let path = path.to_owned();
            return Ok(interpreter::answer(guest, &path, request).await);
        }
        if path == INIT_PATH || path.starts_with(CONTROL_PREFIX) {
            return match self.side {
                Side::Host => control::answer(guest, request).await,
                Side::Inside => Err(no_route(path)),
            };
        }
        match (request.method(), path) {
            (_, "/health") if is_read => {
                let mut reply = empty(StatusCode::NO_CONTENT);
                reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                return Ok(reply);
            }
            (_, "/files") if is_read => return files::download(guest, &request).await,
            (&Method::POST | &Method::PUT, "/files") => return files::upload(guest, request).await,
            _ => check_token(guest, request.headers())?,
        }
        match (request.method(), path) {
            (&Method::POST, "/files/compose") => files::compose(guest, request).await,
            (&Method::GET, "/metrics") => Ok(json(StatusCode::OK, &metrics::read(guest).await)),
            (&Method::GET, "/envs") => Ok(json(StatusCode::OK, &guest.sandbox_env())),
            (_, "/health" | "/files" | "/files/compose" | "/metrics" | "/envs") => {
                Err(HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"))
            }
            _ if path.starts_with("/process.Process/") || path.starts_with("/filesystem.Filesystem/") => {
                Ok(self.call(request).await)
            }
            _ => Err(no_route(path)),
        }
    }

    async fn call(&mut self, mut request: Request<Incoming>) -> Reply {
        take_timeout(&mut request);
        let Ok(reply) = self.rpc.call(request).await;
        reply.map(|body| match body {
            // Said by itself it knows its length, which the enum does not tell.
            ConnectRpcBody::Full(message) => message.map_err(never).boxed_unsync(),
            stream => stream.map_err(never).boxed_unsync(),
        })
    }
}

fn no_route(path: &str) -> HttpError {
    HttpError::not_found(format!("no route for {path}"))
}

/// Takes the time limit of streams out of the RPC library's hands, since on `Start` it is the process's. A limit of 0
/// is none, on every call.
fn take_timeout(request: &mut Request<Incoming>) {
    let given = request.headers().get(CONNECT_TIMEOUT_MS);
    // At most ten digits, says the protocol.
    let limit = given
        .and_then(|value| value.to_str().ok())
        .filter(|text| text.len() <= 10)
        .and_then(|text| text.parse().ok())
        .filter(|milliseconds| *milliseconds > 0)
        .map(Duration::from_millis);
    let ours = ["/process.Process/Start", "/process.Process/Connect", "/filesystem.Filesystem/WatchDir"];
    if limit.is_none() || ours.contains(&request.uri().path()) {
        request.headers_mut().remove(CONNECT_TIMEOUT_MS);
    }
    request.extensions_mut().insert(CallTimeout(limit));
}

/// The answer to a browser that asks whether a page may call. Any page may: the token is what protects.
fn preflight(request: &Request<Incoming>) -> Option<Reply> {
    let asks = request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks {
        return None;
    }
    let mut reply = empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE"));
    // Named back one by one: a star would not cover Authorization.
    if let Some(wanted) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    headers.insert(VARY, HeaderValue::from_static("Access-Control-Request-Headers"));
    Some(reply)
}
