//! Sends requests: within a deadline, with retries where safe, and with errors that name the
//! operation.

use std::error::Error as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::{RequestBuilder, Response};
use tokio::time::Instant;
use tracing::debug;

use super::connection_pool::{ConnectionPool, StreamPermit};
use super::names::Names;
use super::response::{Failure, refusal};
use super::retry::{CONNECT_BUDGET, CONNECT_TIMEOUT, Idempotency, MAX_RETRIES, backoff, is_retryable};
use crate::config::ConfigError;
use crate::error::CallError;

/// Idle connections per host.
const IDLE_CONNECTIONS: usize = 64;
/// HTTP/2 flow-control window per stream: fast over long distances, small in memory.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// HTTP/2 flow-control window per connection: so large that unread streams cannot block the others.
/// An adaptive window is the same for both, so that one unread stream would block every call.
const CONNECTION_WINDOW: u32 = 1024 * 1024 * 1024;

/// One logical request: its description, idempotency and deadline.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) what: String,
    idempotency: Idempotency,
    started: Instant,
    limit: Duration,
    /// The longest backoff before a retry; the call fails when the server asks for more.
    max_backoff: Option<Duration>,
    progress: Option<Progress>,
}

/// Records the progress of an upload, so that its deadline limits silence and not its size.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    started: Instant,
    /// Milliseconds from the start to the last progress.
    last: Arc<AtomicU64>,
}

impl Progress {
    pub(crate) fn note(&self) {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.started + Duration::from_millis(self.last.load(Ordering::Relaxed))
    }
}

impl Call {
    pub(crate) fn new(what: impl Into<String>, idempotency: Idempotency, limit: Duration) -> Self {
        Self { what: what.into(), idempotency, started: Instant::now(), limit, max_backoff: None, progress: None }
    }

    /// The same call with a deadline that every progress report restarts.
    pub(crate) fn with_progress(mut self) -> (Self, Progress) {
        let progress = Progress { started: self.started, last: Arc::default() };
        self.progress = Some(progress.clone());
        (self, progress)
    }

    /// The same call, which fails when it would have to wait longer than this.
    pub(crate) fn with_max_backoff(mut self, longest: Duration) -> Self {
        self.max_backoff = Some(longest);
        self
    }

    /// The same call, marked as not idempotent.
    pub(crate) fn once(mut self) -> Self {
        self.idempotency = Idempotency::NotIdempotent;
        self
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.progress.as_ref().map_or(self.started, Progress::last) + self.limit
    }

    /// Runs `work` until the deadline, which progress may move meanwhile.
    async fn run_until_deadline<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let deadline = self.deadline();
            match tokio::time::timeout_at(deadline, &mut work).await {
                Ok(done) => return Some(done),
                Err(_) if self.deadline() > deadline => {}
                Err(_) => return None,
            }
        }
    }

    /// The remaining time, for servers that receive a timeout.
    pub(crate) fn left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    pub(crate) fn deadline_exceeded(&self) -> CallError {
        CallError::DeadlineExceeded { call: self.what.clone(), after: self.limit }
    }

    pub(crate) fn lost(&self, error: &reqwest::Error) -> CallError {
        CallError::ConnectionLost { call: self.what.clone(), host: host(error), cause: cause(error) }
    }

    pub(crate) fn protocol_error(&self, detail: String) -> CallError {
        CallError::Protocol { call: self.what.clone(), detail }
    }
}

/// HTTP options of the client's user.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpOptions {
    pub(crate) proxy: Option<reqwest::Proxy>,
    pub(crate) roots: Vec<reqwest::Certificate>,
    pub(crate) user_agent: Option<String>,
}

/// The connections of a client.
#[derive(Debug)]
pub(crate) struct Http {
    /// Shared by all calls.
    pooled: reqwest::Client,
    /// Opens a new connection per request: checks a host when the pooled connections are silent.
    /// Built lazily, because most programs never need it and loading the system's certificates is
    /// slow.
    unpooled: OnceLock<reqwest::Client>,
    pool: ConnectionPool,
    options: HttpOptions,
}

impl Http {
    pub(crate) fn new(options: HttpOptions) -> Result<Self, ConfigError> {
        let pooled = build(&options, IDLE_CONNECTIONS).map_err(|error| ConfigError::Http(cause(&error)))?;
        Ok(Self { pool: ConnectionPool::new(pooled.clone()), pooled, unpooled: OnceLock::new(), options })
    }

    pub(crate) fn pooled(&self) -> &reqwest::Client {
        &self.pooled
    }

    pub(crate) fn unpooled(&self) -> &reqwest::Client {
        // Building succeeded once before; a pooled connection is the fallback.
        self.unpooled.get_or_init(|| build(&self.options, 0).unwrap_or_else(|_| self.pooled.clone()))
    }

    /// Sends the request that `request` builds, with retries. Returns after the response head; no
    /// deadline applies to the body here.
    pub(crate) async fn send(
        &self,
        call: &Call,
        request: impl Fn(&reqwest::Client) -> RequestBuilder,
    ) -> Result<Response, Failure> {
        self.send_over(&self.pooled, call, request).await
    }

    /// Like [`Http::send`] for a long-lived response: it holds a stream permit until the result is
    /// dropped.
    pub(crate) async fn send_for_stream(
        &self,
        call: &Call,
        request: impl Fn(&reqwest::Client) -> RequestBuilder,
    ) -> Result<(Response, StreamPermit), Failure> {
        let build = || build(&self.options, IDLE_CONNECTIONS).unwrap_or_else(|_| self.pooled.clone());
        let permit = self.pool.reserve(build);
        let response = self.send_over(permit.http(), call, request).await?;
        Ok((response, permit))
    }

    async fn send_over(
        &self,
        http: &reqwest::Client,
        call: &Call,
        request: impl Fn(&reqwest::Client) -> RequestBuilder,
    ) -> Result<Response, Failure> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (failure, pause) = match self.send_once(call, request(http)).await {
                Ok(response) => return Ok(response),
                Err(Attempt::Final(failure)) => return Err(failure),
                Err(Attempt::Retryable { failure, after }) => (failure, backoff(attempt, after)),
            };
            let too_long = call.max_backoff.is_some_and(|longest| pause > longest);
            if attempt > MAX_RETRIES || pause >= call.left() || too_long {
                return Err(failure);
            }
            debug!(call = call.what, attempt, ?pause, "retrying the request");
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request whose body cannot be rebuilt, without retries.
    pub(crate) async fn send_body(&self, call: &Call, request: RequestBuilder) -> Result<Response, Failure> {
        self.send_once(call, request).await.map_err(|attempt| match attempt {
            Attempt::Final(failure) | Attempt::Retryable { failure, .. } => failure,
        })
    }

    async fn send_once(&self, call: &Call, request: RequestBuilder) -> Result<Response, Attempt> {
        let response = match call.run_until_deadline(request.send()).await {
            None => return Err(Attempt::Final(Failure::Call(call.deadline_exceeded()))),
            Some(Ok(response)) => response,
            Some(Err(error)) if error.is_connect() => {
                let failure = Failure::Call(CallError::Unreachable {
                    call: call.what.clone(),
                    host: host(&error),
                    cause: cause(&error),
                });
                // Nothing was sent, so any request can be retried.
                return Err(if call.started.elapsed() < CONNECT_BUDGET {
                    Attempt::Retryable { failure, after: None }
                } else {
                    Attempt::Final(failure)
                });
            }
            Some(Err(error)) => {
                let failure = Failure::Call(call.lost(&error));
                return Err(match call.idempotency {
                    Idempotency::Idempotent if !error.is_builder() => Attempt::Retryable { failure, after: None },
                    _ => Attempt::Final(failure),
                });
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let refusal = refusal(response, call).await;
        // The edge reports these two definitive errors with a status that proxies use for transient
        // ones.
        let certain = refusal.reports_sandbox_gone() || refusal.message.contains("port is not open");
        let after = refusal.retry_after;
        let repeatable = !certain && is_retryable(status, refusal.should_retry, call.idempotency);
        let failure = Failure::Refused(refusal);
        Err(if repeatable { Attempt::Retryable { failure, after } } else { Attempt::Final(failure) })
    }
}

fn build(options: &HttpOptions, idle: usize) -> Result<reqwest::Client, reqwest::Error> {
    let agent = options.user_agent.as_deref().unwrap_or(concat!("sandbar-sdk/", env!("CARGO_PKG_VERSION")));
    let mut builder = reqwest::Client::builder()
        .user_agent(agent)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(idle)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(Duration::from_secs(20))
        .http2_keep_alive_timeout(Duration::from_secs(20))
        .tcp_nodelay(true)
        .dns_resolver(Names)
        // Never follows redirects, which would send keys and tokens elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .tls_certs_merge(options.roots.iter().cloned());
    if let Some(proxy) = &options.proxy {
        builder = builder.proxy(proxy.clone());
    }
    builder.build()
}

enum Attempt {
    Final(Failure),
    Retryable { failure: Failure, after: Option<Duration> },
}

/// The host of the URL, without path and query, which may contain a signature.
fn host(error: &reqwest::Error) -> String {
    let url = error.url();
    let name = url.and_then(|url| url.host_str()).unwrap_or("the server");
    match url.and_then(reqwest::Url::port_or_known_default) {
        Some(port) => format!("{name}:{port}"),
        None => name.to_owned(),
    }
}

/// The innermost source: the outer layers say "error sending request" and repeat the URL.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut innermost = error.source();
    while let Some(deeper) = innermost.and_then(std::error::Error::source) {
        innermost = Some(deeper);
    }
    match innermost {
        Some(reason) => reason.to_string(),
        None if error.is_timeout() => "no connection in time".into(),
        None => "the request could not be sent".into(),
    }
}
