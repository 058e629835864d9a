//! The HTTP server: routing, authorization and CORS.

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
pub(crate) use self::query::QueryString;
use self::reply::never;
pub(crate) use self::reply::{Body, HttpError, Reply, bytes, empty, json};
use crate::filesystem::FilesystemService;
use crate::process::ProcessService;
use crate::state::Guest;
use crate::streams::CallTimeout;
use crate::{files, interpreter, metrics};

/// Limit of an RPC message: a large paste into a terminal, far below a file upload.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Pause after a failed accept, which fails while descriptors are exhausted.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

type Rpc = ConnectRpcService<Chain<ProcessServer<ProcessService>, FilesystemServer<FilesystemService>>>;

/// The origin of a connection. Only the host may use the control routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Inside,
}

/// Serves the host for the guest's lifetime.
pub(crate) async fn serve_host(guest: Arc<Guest>, listener: UnixListener) {
    let server = HttpServer::new(guest, Side::Host);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => server.serve_connection(stream),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
        }
    }
}

/// Serves code inside the sandbox that expects envd on its usual port.
pub(crate) async fn serve_inside(guest: Arc<Guest>, listener: TcpListener) {
    let server = HttpServer::new(guest, Side::Inside);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => server.serve_connection(stream),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
        }
    }
}

#[derive(Clone)]
struct HttpServer {
    guest: Arc<Guest>,
    side: Side,
    rpc: Rpc,
}

impl HttpServer {
    fn new(guest: Arc<Guest>, side: Side) -> Self {
        let services = Chain(
            ProcessServer::new(ProcessService(Arc::clone(&guest))),
            FilesystemServer::new(FilesystemService(Arc::clone(&guest))),
        );
        let limits =
            Limits::default().with_max_request_body_size(MAX_MESSAGE_BYTES).with_max_message_size(MAX_MESSAGE_BYTES);
        Self { guest, side, rpc: ConnectRpcService::new(services).with_limits(limits) }
    }

    /// Serves a connection until the client closes it; it owns no longer-lived state.
    fn serve_connection(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let server = self.clone();
        let service = service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.handle(request).await) }
        });
        tokio::spawn(async move {
            // A broken connection is a normal disconnect.
            let _left = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }

    async fn handle(mut self, request: Request<Incoming>) -> Reply {
        let from_page = request.headers().contains_key(ORIGIN);
        let has_body = !request.body().is_end_stream();
        let mut reply = match preflight(&request) {
            Some(reply) => reply,
            None => self.dispatch(request).await.unwrap_or_else(|refusal| refusal.reply()),
        };
        if has_body && (reply.status().is_client_error() || reply.status().is_server_error()) {
            // A refusal may leave the request body unread. hyper then closes the connection after
            // the response, so tell the client not to reuse it.
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
            return Ok(interpreter::handle(guest, &path, request).await);
        }
        if path == INIT_PATH || path.starts_with(CONTROL_PREFIX) {
            return match self.side {
                Side::Host => control::handle(guest, request).await,
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
            // Boxed alone it reports its exact length, which the enum does not.
            ConnectRpcBody::Full(message) => message.map_err(never).boxed_unsync(),
            stream => stream.map_err(never).boxed_unsync(),
        })
    }
}

fn no_route(path: &str) -> HttpError {
    HttpError::not_found(format!("no route for {path}"))
}

/// Removes the timeout header of streams before the RPC library sees it, because on `Start` it
/// limits the process. A timeout of 0 means none, on every call.
fn take_timeout(request: &mut Request<Incoming>) {
    let given = request.headers().get(CONNECT_TIMEOUT_MS);
    // The protocol permits at most ten digits.
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

/// Answers a CORS preflight. Any origin may call: the token protects.
fn preflight(request: &Request<Incoming>) -> Option<Reply> {
    let asks = request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks {
        return None;
    }
    let mut reply = empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE"));
    // Echoed one by one: `*` does not cover Authorization.
    if let Some(wanted) = request.headers().get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    headers.insert(VARY, HeaderValue::from_static("Access-Control-Request-Headers"));
    Some(reply)
}
