//! Serves one connection of a sandboxed program, request by request: the policy decides on each
//! request, rules set its headers, and a separate upstream connection carries it. Bodies stream
//! through; no message is buffered.
//!
//! A secret leaves only over TLS, on any port, and only if the SNI of the connection, the host of
//! the request and the upstream's verified certificate name the same host. Over plain HTTP it
//! leaves only where its rule allows plaintext.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::forward::{self, Upgrade};
use super::headers::Headers;
use super::host;
use super::refusal::Refusal;
use super::upstream::{HANDSHAKE_TIMEOUT, Upstream};
use crate::stream::{Dial, Outside, Stream};
use crate::trust::Trust;

/// How long a connection may idle between two requests, and how long a request head may take.
/// Clients keep idle connections for one to five minutes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Limit of a request head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Until the response head arrives: language models take many minutes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Whether the connection is TLS, and for which server name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Security {
    Plain,
    /// `name` is in lower case.
    Tls {
        name: String,
    },
}

/// Decides on the requests of one connection.
pub(crate) trait RequestPolicy: Send + Sync + 'static {
    /// Decides on a request for `host`, a name in lower case, or [`None`] if it names none. Returns
    /// the headers that a rule sets.
    ///
    /// # Errors
    /// [`Refusal`], which is sent to the program.
    fn decide(&self, host: Option<&str>) -> Result<Option<Arc<Headers>>, Refusal>;
    /// The value of a secret that a header names.
    fn secret(&self, name: &str) -> Option<String>;
    /// Records the outcome of a request.
    fn record(&self, outcome: RequestOutcome);
}

/// The outcome of a request, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestOutcome {
    pub allowed: bool,
    pub host: Option<String>,
    pub reason: String,
}

/// A connection of a sandboxed program, and its target.
pub(crate) struct Connection {
    pub inside: Box<dyn Stream>,
    pub outside: Outside,
    pub redial: Dial,
    pub security: Security,
    pub trust: Arc<Trust>,
    pub policy: Arc<dyn RequestPolicy>,
}

type Body = Either<Incoming, Full<Bytes>>;

struct Exchange {
    security: Security,
    policy: Arc<dyn RequestPolicy>,
    upstream: tokio::sync::Mutex<Upstream>,
    /// Upgraded connections.
    tunnels: Mutex<JoinSet<()>>,
}

/// Serves a connection until it ends. Dropping the future closes both sides.
pub(crate) async fn serve(connection: Connection) {
    let Connection { inside, outside, redial, security, trust, policy } = connection;
    let inside = match &security {
        Security::Plain => inside,
        Security::Tls { name } => match accept(inside, Arc::clone(&trust)).await {
            Ok(stream) => stream,
            Err(error) => {
                let reason = format!("the program inside does not go on with TLS: {error}");
                return policy.record(RequestOutcome { allowed: false, host: Some(name.clone()), reason });
            }
        },
    };
    let upstream = Upstream::new(outside, redial, security.clone(), trust);
    let exchange = Arc::new(Exchange { security, policy, upstream: upstream.into(), tunnels: Mutex::default() });
    let serving = Arc::clone(&exchange);
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&serving);
        async move { Ok::<_, Infallible>(exchange.respond(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(inside), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a proxied connection ended with an error");
    }
    let mut tunnels = std::mem::take(&mut *exchange.tunnels.lock());
    while tunnels.join_next().await.is_some() {}
}

async fn accept(inside: Box<dyn Stream>, trust: Arc<Trust>) -> Result<Box<dyn Stream>, String> {
    let config = tokio::task::spawn_blocking(move || trust.server()).await.map_err(|error| error.to_string())?;
    let acceptor = TlsAcceptor::from(config.map_err(|error| error.to_string())?);
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(inside)).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        // The program does not trust our certificate, or negotiates another protocol.
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no handshake in time".to_owned()),
    }
}

impl Exchange {
    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let host = host::from_request(&request).ok().flatten();
        match self.forward(request).await {
            Ok(response) => response.map(Either::Left),
            Err(Failure::Policy(refusal)) => refusal.to_response().map(Either::Right),
            Err(Failure::Ours(refusal)) => {
                self.policy.record(RequestOutcome { allowed: false, host, reason: refusal.reason().to_owned() });
                refusal.to_response().map(Either::Right)
            }
        }
    }

    async fn forward(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>, Failure> {
        let host = self.check_host(&request)?;
        let headers = self.policy.decide(host.as_deref()).map_err(Failure::Policy)?;
        let upgrade = forward::requested_upgrade(request.headers());
        let inside = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        forward::strip(request.headers_mut());
        if let Some(upgrade) = &upgrade {
            upgrade.insert_into(request.headers_mut());
        }
        if let Some(headers) = headers.filter(|headers| !headers.is_empty()) {
            if let Some(name) = headers.needs_tls().filter(|_| self.security == Security::Plain) {
                let reason = format!(
                    "a rule fills the header '{name}' with a secret, which plain HTTP would show to the network; \
                     request https:// instead, or set allowPlaintext in the rule"
                );
                return Err(refuse(StatusCode::FORBIDDEN, reason));
            }
            if request.method() == Method::TRACE {
                return Err(refuse(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "TRACE would send back the headers that a rule sets",
                ));
            }
            let secret = |name: &str| self.policy.secret(name);
            let filled = headers.apply(request.headers_mut(), secret);
            filled.map_err(|reason| refuse(StatusCode::BAD_GATEWAY, reason))?;
            let reason = format!("a rule sets headers of the request: {}", headers.names());
            self.policy.record(RequestOutcome { allowed: true, host, reason });
        }
        let mut response = self.send(request).await?;
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let outside = upgraded.then(|| hyper::upgrade::on(&mut response));
        forward::strip(response.headers_mut());
        // HTTP/3 and other alternative services would bypass the rules.
        response.headers_mut().remove(header::ALT_SVC);
        match (upgraded, upgrade, inside, outside) {
            (true, Some(upgrade), Some(inside), Some(outside)) => {
                self.start_tunnel(&upgrade, inside, outside, &mut response);
            }
            (true, ..) => return Err(refuse(StatusCode::BAD_GATEWAY, "the target changes the protocol unasked")),
            (false, ..) => {}
        }
        Ok(response)
    }

    /// The host of a request, if it is unambiguous and matches the connection.
    fn check_host(&self, request: &Request<Incoming>) -> Result<Option<String>, Failure> {
        if request.method() == Method::CONNECT {
            return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "CONNECT would hide what follows"));
        }
        let unclear = |_| refuse(StatusCode::BAD_REQUEST, "it cannot be read for which host the request is");
        let host = host::from_request(request).map_err(unclear)?;
        match &self.security {
            Security::Tls { name } if host.as_ref() != Some(name) => {
                let asked = host.as_deref().unwrap_or("none");
                let reason = format!("the connection is for {name}, the request for {asked}");
                Err(refuse(StatusCode::MISDIRECTED_REQUEST, reason))
            }
            _ => Ok(host),
        }
    }

    async fn send(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Failure> {
        let mut upstream = self.upstream.lock().await;
        let sender = upstream.sender().await.map_err(|reason| refuse(StatusCode::BAD_GATEWAY, reason))?;
        match timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(refuse(StatusCode::BAD_GATEWAY, format!("the target ended the connection: {error}"))),
            Err(_) => Err(refuse(StatusCode::GATEWAY_TIMEOUT, "the target did not answer in time")),
        }
    }

    /// Copies both ways after a protocol upgrade.
    fn start_tunnel(
        &self,
        upgrade: &Upgrade,
        inside: OnUpgrade,
        outside: OnUpgrade,
        response: &mut Response<Incoming>,
    ) {
        upgrade.insert_into(response.headers_mut());
        self.tunnels.lock().spawn(async move {
            if let (Ok(inside), Ok(outside)) = (inside.await, outside.await) {
                let (mut inside, mut outside) = (TokioIo::new(inside), TokioIo::new(outside));
                // Either side may close; an error is a normal end here.
                let _ = copy_bidirectional(&mut inside, &mut outside).await;
            }
        });
    }
}

/// Why the proxy answers a request itself.
enum Failure {
    /// The policy refused and has recorded it.
    Policy(Refusal),
    Ours(Refusal),
}

fn refuse(status: StatusCode, reason: impl Into<String>) -> Failure {
    Failure::Ours(Refusal::new(status, reason))
}
