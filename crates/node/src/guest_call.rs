//! Calls of the server to a guest: renew its lease, read its log, check its health. Each has a
//! timeout, since processes in the sandbox can starve the guest.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use protocol::guest::{LEASE_PATH, LOG_PATH, Lease, LogEntry};
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

/// A guest answers within a millisecond; one that takes this long is stuck.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// More than the complete log of an honest guest: a thousand entries of a few hundred bytes.
const MOST_ANSWER_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("the guest did not answer in time")]
    Late,
    #[error("the guest answered {0}")]
    Status(StatusCode),
    /// The guest's message, after Connect's name for the kind of error.
    #[error("{code}: {message}")]
    Refused { code: String, message: String },
    #[error("the guest cannot be called")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl GuestError {
    pub(crate) fn broken(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Broken(source.into())
    }
}

pub(crate) async fn put_lease(socket: &Path, lease: Lease) -> Result<(), GuestError> {
    let body = serde_json::to_vec(&lease).map_err(GuestError::broken)?;
    call(socket, Method::PUT, LEASE_PATH, body).await.map(|_| ())
}

pub(crate) async fn read_log(socket: &Path, after: u64) -> Result<Vec<LogEntry>, GuestError> {
    let answer = call(socket, Method::GET, &format!("{LOG_PATH}?after={after}"), Vec::new()).await?;
    serde_json::from_slice(&answer).map_err(GuestError::broken)
}

pub(crate) async fn check_health(socket: &Path) -> Result<(), GuestError> {
    call(socket, Method::GET, "/health", Vec::new()).await.map(|_| ())
}

async fn call(socket: &Path, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, GuestError> {
    tokio::time::timeout(CALL_TIMEOUT, exchange(socket, method, path, body)).await.map_err(|_| GuestError::Late)?
}

async fn exchange(socket: &Path, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, GuestError> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "guest")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::<Bytes>::from(body))
        .map_err(GuestError::broken)?;
    let mut connection = connect(socket).await?;
    let response = connection.sender.send_request(request).await.map_err(GuestError::broken)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST_ANSWER_BYTES).collect().await.map_err(GuestError::broken)?;
    if status.is_success() { Ok(body.to_bytes()) } else { Err(GuestError::Status(status)) }
}

/// A connection to a guest, which is closed when it is dropped.
pub(crate) struct Connection<B = Full<Bytes>> {
    pub(crate) sender: SendRequest<B>,
    /// The task that drives the connection.
    _driver: AbortOnDropHandle<()>,
}

pub(crate) async fn connect<B>(socket: &Path) -> Result<Connection<B>, GuestError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = UnixStream::connect(socket).await.map_err(GuestError::broken)?;
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(GuestError::broken)?;
    let driver = tokio::spawn(async move {
        // A pending request gets the error of an early end.
        let _ = connection.await;
    });
    Ok(Connection { sender, _driver: AbortOnDropHandle::new(driver) })
}
