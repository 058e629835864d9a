//! Requests to the daemon inside a sandbox: routing and access headers, Connect calls and streams,
//! and health checks.

use std::time::Duration;

use buffa::Message;
use http::{HeaderMap, HeaderValue, Method};
use protocol::guest::ENVD_PORT;
use protocol::headers::{ACCESS_TOKEN, CONNECT_TIMEOUT_MS, KEEPALIVE_PING_INTERVAL, SANDBOX_ID, SANDBOX_PORT};
use reqwest::RequestBuilder;
use url::Url;

use crate::client::Shared;
use crate::config::join;
use crate::transport::connect::{EnvelopeStream, STREAM, UNARY, envelope, read_unary};
use crate::transport::{Call, Failure};
use protocol::SandboxId;
use secret::Secret;

/// The largest timeout in milliseconds that the protocol can express: 115 days. No sandbox lives
/// longer.
const MAX_TIMEOUT_MS: u128 = 9_999_999_999;

/// The URL and headers of a sandbox's daemon.
#[derive(Debug)]
pub(crate) struct Envd {
    url: Url,
    headers: HeaderMap,
}

/// Health of a sandbox whose stream broke or went silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Alive,
    /// The edge reports that it does not run.
    Gone,
    /// No response in time, or an inconclusive one.
    Unknown,
}

impl Envd {
    pub(crate) fn new(url: Url, id: &SandboxId, token: Option<&Secret>) -> Option<Self> {
        let mut headers = HeaderMap::new();
        headers.insert(SANDBOX_ID, HeaderValue::from_str(id.as_str()).ok()?);
        headers.insert(SANDBOX_PORT, HeaderValue::from(ENVD_PORT));
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(token.expose()).ok()?;
            value.set_sensitive(true);
            headers.insert(ACCESS_TOKEN, value);
        }
        Some(Self { url, headers })
    }

    /// A request to one of its HTTP endpoints; `path` is encoded and may have a query.
    pub(crate) fn request(&self, http: &reqwest::Client, method: Method, path: &str) -> RequestBuilder {
        http.request(method, join(&self.url, path)).headers(self.headers.clone())
    }

    /// A unary call, as `user` if given.
    pub(crate) async fn unary<Q: Message, A: Message + Default>(
        &self,
        shared: &Shared,
        call: &Call,
        method: &str,
        user: Option<&str>,
        message: &Q,
    ) -> Result<A, Failure> {
        let body = message.encode_to_bytes();
        let make = |http: &reqwest::Client| {
            let request = self.rpc(http, method, user, UNARY);
            request.header(CONNECT_TIMEOUT_MS, call.left().as_millis().max(1).to_string()).body(body.clone())
        };
        read_unary(shared.http.send(call, make).await?, call).await
    }

    /// Opens a server stream. `limit` is sent as the call's timeout: on a start it limits the
    /// process.
    pub(crate) async fn stream<Q: Message>(
        &self,
        shared: &Shared,
        call: &Call,
        method: &str,
        user: Option<&str>,
        limit: Option<Duration>,
        message: &Q,
    ) -> Result<EnvelopeStream, Failure> {
        let body = envelope(message);
        let make = |http: &reqwest::Client| {
            let mut request = self.rpc(http, method, user, STREAM);
            request = request.header(KEEPALIVE_PING_INTERVAL, shared.keepalive.as_secs().to_string());
            if let Some(limit) = limit {
                request = request.header(CONNECT_TIMEOUT_MS, limit.as_millis().clamp(1, MAX_TIMEOUT_MS).to_string());
            }
            request.body(body.clone())
        };
        let (response, permit) = shared.http.send_for_stream(call, make).await?;
        EnvelopeStream::new(response, Some(permit), call)
    }

    fn rpc(&self, http: &reqwest::Client, method: &str, user: Option<&str>, kind: &'static str) -> RequestBuilder {
        let request = self.request(http, Method::POST, method).header(http::header::CONTENT_TYPE, kind);
        let request = request.header("connect-protocol-version", "1");
        match user {
            Some(user) => request.basic_auth(user, Some("")),
            None => request,
        }
    }

    /// Checks on a new connection, so that a dead pooled connection does not decide the result.
    pub(crate) async fn health(&self, shared: &Shared, within: Duration) -> Health {
        let call = Call::new("check the health", crate::transport::Idempotency::NotIdempotent, within);
        match shared.http.send_body(&call, self.request(shared.http.unpooled(), Method::GET, "/health")).await {
            Ok(_) => Health::Alive,
            Err(Failure::Refused(refusal)) if refusal.reports_sandbox_gone() => Health::Gone,
            Err(_) => Health::Unknown,
        }
    }
}
