//! One connection of a program inside, request by request: each is judged by itself, gets its headers, and goes out over a
//! connection of ours. Bodies stream through; no message is kept.
//!
//! A secret leaves only by TLS, at whatever port, and only if the name of the connection, the host
//! of the request and the target's verified certificate are one and the same name. By plain HTTP it
//! leaves where its rule says so.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::forward::{self, Upgrade};
use crate::headers::Headers;
use crate::host;
use crate::refusal::Refusal;
use crate::stream::{Dial, Outside, Stream};
use crate::trust::Trust;
use crate::upstream::{HANDSHAKE, Upstream};

/// How long a connection may rest between two requests, and a head take to come. Clients keep theirs for a minute or five.
const IDLE: Duration = Duration::from_secs(600);
/// Longest head of a request.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// Until an answer begins: models think for many minutes.
const ANSWER: Duration = Duration::from_secs(3600);

/// Whether the connection is TLS, and for which name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    Plain,
    /// In lower case.
    Tls {
        name: String,
    },
}

/// Who decides about the requests of one connection.
pub trait Judge: Send + Sync + 'static {
    /// About a request for `host`, a name in lower case, or for none: the headers that a rule sets.
    fn judge(&self, host: Option<&str>) -> Result<Option<Arc<Headers>>, Refusal>;
    /// The value of a secret that a header names.
    fn secret(&self, name: &str) -> Option<String>;
    /// Hears what became of a request.
    fn tell(&self, told: Told);
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub allowed: bool,
    pub host: Option<String>,
    pub reason: String,
}

/// A connection of a program inside, and its target.
pub struct Connection {
    pub inside: Box<dyn Stream>,
    pub outside: Outside,
    pub redial: Dial,
    pub security: Security,
    pub trust: Arc<Trust>,
    pub judge: Arc<dyn Judge>,
}

type Body = Either<Incoming, Full<Bytes>>;

struct Exchange {
    security: Security,
    judge: Arc<dyn Judge>,
    upstream: tokio::sync::Mutex<Upstream>,
    /// What goes on as another protocol.
    tunnels: Mutex<JoinSet<()>>,
}

/// Serves a connection until it ends. Dropped, it cuts both sides.
pub async fn serve(connection: Connection) {
    let Connection { inside, outside, redial, security, trust, judge } = connection;
    let inside = match &security {
        Security::Plain => inside,
        Security::Tls { name } => match accept(inside, Arc::clone(&trust)).await {
            Ok(stream) => stream,
            Err(error) => {
                let reason = format!("the program inside does not go on with TLS: {error}");
                return judge.tell(Told { allowed: false, host: Some(name.clone()), reason });
            }
        },
    };
    let upstream = Upstream::new(outside, redial, security.clone(), trust);
    let exchange = Arc::new(Exchange { security, judge, upstream: upstream.into(), tunnels: Mutex::default() });
    let serving = Arc::clone(&exchange);
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&serving);
        async move { Ok::<_, Infallible>(exchange.answer(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MOST_HEAD_BYTES)
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(inside), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection that was read ended");
    }
    let mut tunnels = std::mem::take(&mut *exchange.tunnels.lock().unwrap_or_else(PoisonError::into_inner));
    while tunnels.join_next().await.is_some() {}
}

async fn accept(inside: Box<dyn Stream>, trust: Arc<Trust>) -> Result<Box<dyn Stream>, String> {
    let config = tokio::task::spawn_blocking(move || trust.server()).await.map_err(|error| error.to_string())?;
    let acceptor = TlsAcceptor::from(config.map_err(|error| error.to_string())?);
    match timeout(HANDSHAKE, acceptor.accept(inside)).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        // It does not trust us, or wants another protocol.
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no handshake in time".to_owned()),
    }
}

impl Exchange {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let host = host::of(&request).ok().flatten();
        match self.pass(request).await {
            Ok(response) => response.map(Either::Left),
            Err(Failure::Judged(refusal)) => refusal.answer().map(Either::Right),
            Err(Failure::Ours(refusal)) => {
                self.judge.tell(Told { allowed: false, host, reason: refusal.reason().to_owned() });
                refusal.answer().map(Either::Right)
            }
        }
    }

    async fn pass(&self, mut request: Request<Incoming>) -> Result<Response<Incoming>, Failure> {
        let host = self.host(&request)?;
        let headers = self.judge.judge(host.as_deref()).map_err(Failure::Judged)?;
        let upgrade = forward::upgrade(request.headers());
        let inside = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        forward::strip(request.headers_mut());
        if let Some(upgrade) = &upgrade {
            upgrade.put(request.headers_mut());
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
            let secret = |name: &str| self.judge.secret(name);
            let filled = headers.apply(request.headers_mut(), secret);
            filled.map_err(|reason| refuse(StatusCode::BAD_GATEWAY, reason))?;
            let reason = format!("a rule sets headers of the request: {}", headers.names());
            self.judge.tell(Told { allowed: true, host, reason });
        }
        let mut response = self.send(request).await?;
        let going_on = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let outside = going_on.then(|| hyper::upgrade::on(&mut response));
        forward::strip(response.headers_mut());
        // Other ways to the target, HTTP/3 say, would go past the rules.
        response.headers_mut().remove(header::ALT_SVC);
        match (going_on, upgrade, inside, outside) {
            (true, Some(upgrade), Some(inside), Some(outside)) => self.go_on(&upgrade, inside, outside, &mut response),
            (true, ..) => return Err(refuse(StatusCode::BAD_GATEWAY, "the target changes the protocol unasked")),
            (false, ..) => {}
        }
        Ok(response)
    }

    /// For whom a request is, if that is clear and fits the connection.
    fn host(&self, request: &Request<Incoming>) -> Result<Option<String>, Failure> {
        if request.method() == Method::CONNECT {
            return Err(refuse(StatusCode::METHOD_NOT_ALLOWED, "CONNECT would hide what follows"));
        }
        let unclear = |_| refuse(StatusCode::BAD_REQUEST, "it cannot be read for which host the request is");
        let host = host::of(request).map_err(unclear)?;
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
        match timeout(ANSWER, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(refuse(StatusCode::BAD_GATEWAY, format!("the target ended the connection: {error}"))),
            Err(_) => Err(refuse(StatusCode::GATEWAY_TIMEOUT, "the target did not answer in time")),
        }
    }

    /// Both sides go on with another protocol, which passes through.
    fn go_on(&self, upgrade: &Upgrade, inside: OnUpgrade, outside: OnUpgrade, response: &mut Response<Incoming>) {
        upgrade.put(response.headers_mut());
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
            if let (Ok(inside), Ok(outside)) = (inside.await, outside.await) {
                let (mut inside, mut outside) = (TokioIo::new(inside), TokioIo::new(outside));
                // An end is an end, whoever brings it about.
                let _ = copy_bidirectional(&mut inside, &mut outside).await;
            }
        });
    }
}

/// Why a request is answered here.
enum Failure {
    /// The judge knows.
    Judged(Refusal),
    Ours(Refusal),
}

fn refuse(status: StatusCode, reason: impl Into<String>) -> Failure {
    Failure::Ours(Refusal::new(status, reason))
}
