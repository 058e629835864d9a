//! Sends requests: within a deadline, again where that is safe, and with errors that say what was attempted.

use std::error::Error as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::{RequestBuilder, Response};
use tokio::time::Instant;
use tracing::debug;

use super::answer::{Failure, refusal};
use super::lanes::{Lanes, Place};
use super::names::Names;
use super::retry::{CONNECT_BUDGET, CONNECT_TIMEOUT, RETRIES, Repeat, may_repeat, wait};
use crate::config::ConfigError;
use crate::error::CallError;

/// Connections to one host that wait for the next request.
const IDLE_CONNECTIONS: usize = 64;
/// What one HTTP/2 stream may send ahead of its reader: fast also over long ways, and little to keep.
const STREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// What all streams of a connection may: so much that output which nobody reads cannot hold up the others. A window that
/// adapts itself is the same for both, so that one such output stops every call.
const CONNECTION_WINDOW: u32 = 1024 * 1024 * 1024;

/// One request as its caller sees it: what it is for, and until when.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) what: String,
    repeat: Repeat,
    started: Instant,
    limit: Duration,
    /// Before it is sent again; a server that asks for more is not asked again.
    longest_wait: Option<Duration>,
    progress: Option<Progress>,
}

/// Notes that an upload goes on, so that its deadline is for silence and not for its size.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    started: Instant,
    /// Milliseconds from the start to the last step.
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
    pub(crate) fn new(what: impl Into<String>, repeat: Repeat, limit: Duration) -> Self {
        Self { what: what.into(), repeat, started: Instant::now(), limit, longest_wait: None, progress: None }
    }

    /// The same call, whose time begins anew whenever the returned is told of a step.
    pub(crate) fn progressing(mut self) -> (Self, Progress) {
        let progress = Progress { started: self.started, last: Arc::default() };
        self.progress = Some(progress.clone());
        (self, progress)
    }

    /// The same call, given up when it would have to wait for longer than this.
    pub(crate) fn waiting_at_most(mut self, longest: Duration) -> Self {
        self.longest_wait = Some(longest);
        self
    }

    /// The same call, whose repeats are not harmless.
    pub(crate) fn once(mut self) -> Self {
        self.repeat = Repeat::Never;
        self
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.progress.as_ref().map_or(self.started, Progress::last) + self.limit
    }

    /// Waits until the deadline, wherever it has moved by then.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Option<T> {
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

    /// What is left, for a server that is told.
    pub(crate) fn left(&self) -> Duration {
        self.deadline().saturating_duration_since(Instant::now())
    }

    pub(crate) fn out_of_time(&self) -> CallError {
        CallError::DeadlineExceeded { call: self.what.clone(), after: self.limit }
    }

    pub(crate) fn lost(&self, error: &reqwest::Error) -> CallError {
        CallError::ConnectionLost { call: self.what.clone(), host: host(error), cause: cause(error) }
    }

    pub(crate) fn misunderstood(&self, detail: String) -> CallError {
        CallError::Protocol { call: self.what.clone(), detail }
    }
}

/// What a user of the client may choose about HTTP.
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
    /// A new connection each: asks whether a host lives when the shared ones are silent. Made when it is needed, since
    /// most programs never need it and reading the system's certificates takes its time.
    lone: OnceLock<reqwest::Client>,
    lanes: Lanes,
    options: HttpOptions,
}

impl Http {
    pub(crate) fn new(options: HttpOptions) -> Result<Self, ConfigError> {
        let pooled = build(&options, IDLE_CONNECTIONS).map_err(|error| ConfigError::Http(cause(&error)))?;
        Ok(Self { lanes: Lanes::new(pooled.clone()), pooled, lone: OnceLock::new(), options })
    }

    pub(crate) fn pooled(&self) -> &reqwest::Client {
        &self.pooled
    }

    pub(crate) fn lone(&self) -> &reqwest::Client {
        // What could be made once can be made again; if not, a shared connection asks less well.
        self.lone.get_or_init(|| build(&self.options, 0).unwrap_or_else(|_| self.pooled.clone()))
    }

    /// Sends what `request` makes, once or more, until there is a success or nothing more to try. The success's body is
    /// still to be read, and no deadline watches over that here.
    pub(crate) async fn send(
        &self,
        call: &Call,
        request: impl Fn(&reqwest::Client) -> RequestBuilder,
    ) -> Result<Response, Failure> {
        self.send_over(&self.pooled, call, request).await
    }

    /// The same for an answer that may last: it has a place until the returned is dropped.
    pub(crate) async fn send_for_stream(
        &self,
        call: &Call,
        request: impl Fn(&reqwest::Client) -> RequestBuilder,
    ) -> Result<(Response, Place), Failure> {
        let build = || build(&self.options, IDLE_CONNECTIONS).unwrap_or_else(|_| self.pooled.clone());
        let place = self.lanes.place(build);
        let response = self.send_over(place.http(), call, request).await?;
        Ok((response, place))
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
                Err(Attempt::Repeatable { failure, after }) => (failure, wait(attempt, after)),
            };
            let too_long = call.longest_wait.is_some_and(|longest| pause > longest);
            if attempt > RETRIES || pause >= call.left() || too_long {
                return Err(failure);
            }
            debug!(call = call.what, attempt, ?pause, "sending again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request whose body exists only once.
    pub(crate) async fn send_body(&self, call: &Call, request: RequestBuilder) -> Result<Response, Failure> {
        self.send_once(call, request).await.map_err(|attempt| match attempt {
            Attempt::Final(failure) | Attempt::Repeatable { failure, .. } => failure,
        })
    }

    async fn send_once(&self, call: &Call, request: RequestBuilder) -> Result<Response, Attempt> {
        let response = match call.in_time(request.send()).await {
            None => return Err(Attempt::Final(Failure::Call(call.out_of_time()))),
            Some(Ok(response)) => response,
            Some(Err(error)) if error.is_connect() => {
                let failure = Failure::Call(CallError::Unreachable {
                    call: call.what.clone(),
                    host: host(&error),
                    cause: cause(&error),
                });
                // Nothing was sent, so anything may be sent again.
                return Err(if call.started.elapsed() < CONNECT_BUDGET {
                    Attempt::Repeatable { failure, after: None }
                } else {
                    Attempt::Final(failure)
                });
            }
            Some(Err(error)) => {
                let failure = Failure::Call(call.lost(&error));
                return Err(match call.repeat {
                    Repeat::Harmless if !error.is_builder() => Attempt::Repeatable { failure, after: None },
                    _ => Attempt::Final(failure),
                });
            }
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let refusal = refusal(response, call).await;
        // The edge's two certain answers come with a status that proxies use for passing trouble.
        let certain = refusal.says_sandbox_is_gone() || refusal.message.contains("port is not open");
        let after = refusal.retry_after;
        let repeatable = !certain && may_repeat(status, refusal.should_retry, call.repeat);
        let failure = Failure::Refused(refusal);
        Err(if repeatable { Attempt::Repeatable { failure, after } } else { Attempt::Final(failure) })
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
        // Keys and tokens go where the caller sends them, and not where an answer points.
        .redirect(reqwest::redirect::Policy::none())
        .tls_certs_merge(options.roots.iter().cloned());
    if let Some(proxy) = &options.proxy {
        builder = builder.proxy(proxy.clone());
    }
    builder.build()
}

enum Attempt {
    Final(Failure),
    Repeatable { failure: Failure, after: Option<Duration> },
}

/// Who was asked, without path and query: those may hold a signature.
fn host(error: &reqwest::Error) -> String {
    let url = error.url();
    let name = url.and_then(|url| url.host_str()).unwrap_or("the server");
    match url.and_then(reqwest::Url::port_or_known_default) {
        Some(port) => format!("{name}:{port}"),
        None => name.to_owned(),
    }
}

/// The innermost reason: the layers above it say "error sending request" and repeat the URL.
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
