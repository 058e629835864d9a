//! One sandbox: the handle for its commands, terminals and files.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method};
use protocol::headers::{SANDBOX_ID, SANDBOX_PORT, TRAFFIC_ACCESS_TOKEN};
use protocol::{SandboxId, rest};

use crate::client::Client;
use crate::control::{Fork, ForkError, LogQuery, NewSnapshot, Pause, PauseOutcome, SandboxError, TimeRange};
use crate::envd::Envd;
use crate::error::CallError;
use crate::transport::{Call, Failure, Idempotency};
use secret::Secret;

/// A created or connected sandbox. Cheap to clone. Dropping it leaves the sandbox unchanged.
#[derive(Clone)]
pub struct Sandbox {
    client: Client,
    parts: Arc<Parts>,
}

/// URL and headers for requests to a port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRoute {
    /// Base URL; paths are appended to it.
    pub url: String,
    /// Routing headers, and the sandbox's traffic token if it has one.
    pub headers: HeaderMap,
}

struct Parts {
    id: SandboxId,
    template: String,
    domain: Option<String>,
    token: Option<Secret>,
    traffic_token: Option<Secret>,
    envd_version: String,
    client_id: String,
    alias: Option<String>,
    envd: Envd,
}

impl Sandbox {
    pub(crate) fn new(client: &Client, made: rest::Sandbox) -> Result<Self, CallError> {
        let rest::Sandbox {
            template_id,
            sandbox_id,
            client_id,
            envd_version,
            alias,
            envd_access_token,
            traffic_access_token,
            domain,
        } = made;
        let protocol_error = |detail: String| CallError::Protocol { call: "take in a sandbox".into(), detail };
        let id: SandboxId = sandbox_id.parse().map_err(|error| protocol_error(format!("{error}")))?;
        let domain = domain.filter(|domain| !domain.is_empty());
        let token = envd_access_token.filter(|token| !token.is_empty()).map(Secret::from);
        let url = client.shared().endpoints.envd_url(&id, domain.as_deref());
        let url = url.map_err(|error| protocol_error(error.to_string()))?;
        let envd = Envd::new(url, &id, token.as_ref())
            .ok_or_else(|| protocol_error("the access token cannot be sent in a header".into()))?;
        let traffic_token = traffic_access_token.map(Secret::from);
        let parts =
            Parts { id, template: template_id, domain, token, traffic_token, envd_version, client_id, alias, envd };
        Ok(Self { client: client.clone(), parts: Arc::new(parts) })
    }

    pub fn id(&self) -> &SandboxId {
        &self.parts.id
    }

    /// The id of its template.
    pub fn template(&self) -> &str {
        &self.parts.template
    }

    /// The version its daemon reports.
    pub fn envd_version(&self) -> &str {
        &self.parts.envd_version
    }

    /// The protocol's own type, as create and connect return it, including the tokens.
    pub fn model(&self) -> rest::Sandbox {
        let text = |secret: &Secret| secret.expose().to_owned();
        rest::Sandbox {
            template_id: self.parts.template.clone(),
            sandbox_id: self.parts.id.to_string(),
            client_id: self.parts.client_id.clone(),
            envd_version: self.parts.envd_version.clone(),
            alias: self.parts.alias.clone(),
            envd_access_token: self.parts.token.as_ref().map(text),
            traffic_access_token: self.parts.traffic_token.as_ref().map(text),
            domain: self.parts.domain.clone(),
        }
    }

    /// The client that created it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The token for its daemon and files; [`None`] for an unsecured sandbox.
    pub fn access_token(&self) -> Option<&Secret> {
        self.parts.token.as_ref()
    }

    /// The token to send to its ports as `e2b-traffic-access-token`, if its traffic is private.
    pub fn traffic_token(&self) -> Option<&Secret> {
        self.parts.traffic_token.as_ref()
    }

    /// The public host of a port; [`Sandbox::url`] adds the scheme.
    pub fn host(&self, port: u16) -> String {
        self.client.shared().endpoints.host(&self.parts.id, self.parts.domain.as_deref(), port)
    }

    /// The public URL of a port, for browsers and people; paths are appended to it. With a local
    /// server a program may be unable to resolve its name: programs use [`Sandbox::route`].
    pub fn url(&self, port: u16) -> String {
        self.client.shared().endpoints.port_url(&self.parts.id, self.parts.domain.as_deref(), port)
    }

    /// How this program reaches a port: through the client's sandbox URL if set, else by host name.
    pub fn route(&self, port: u16) -> PortRoute {
        let mut headers = HeaderMap::new();
        if let Some(mut token) = self.traffic_token().and_then(|token| HeaderValue::from_str(token.expose()).ok()) {
            token.set_sensitive(true);
            headers.insert(TRAFFIC_ACCESS_TOKEN, token);
        }
        if let (Some(edge), Ok(id)) = (self.client.sandbox_url(), HeaderValue::from_str(self.parts.id.as_str())) {
            headers.insert(SANDBOX_ID, id);
            headers.insert(SANDBOX_PORT, HeaderValue::from(port));
            return PortRoute { url: edge.as_str().trim_end_matches('/').to_owned(), headers };
        }
        let url = self.url(port);
        // Names below localhost are this machine, but not every resolver supports them.
        if let Some(host) = url.strip_prefix("http://")
            && let name = host.split(':').next().unwrap_or(host)
            && name.ends_with(".localhost")
            && let Ok(value) = HeaderValue::from_str(host)
        {
            headers.insert(HOST, value);
            return PortRoute { url: url.replacen(name, "127.0.0.1", 1), headers };
        }
        PortRoute { url, headers }
    }

    /// The same sandbox with `deadline` for responses.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { client: self.client.within(deadline), parts: Arc::clone(&self.parts) }
    }

    /// All details of the sandbox.
    ///
    /// # Errors
    /// Those of [`Client::info`].
    pub async fn info(&self) -> Result<rest::SandboxDetail, SandboxError> {
        self.client.info(&self.parts.id).await
    }

    /// Whether it runs and its daemon responds. False when it was killed, has ended or is paused.
    ///
    /// # Errors
    /// Any [`CallError`]: the state is unknown.
    pub async fn is_running(&self) -> Result<bool, CallError> {
        let call = Call::new(
            format!("check whether sandbox {} runs", self.parts.id),
            Idempotency::Idempotent,
            self.client.deadline(),
        );
        let ask = |http: &reqwest::Client| self.parts.envd.request(http, Method::GET, "/health");
        match self.client.shared().http.send(&call, ask).await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(refusal)) if refusal.reports_sandbox_gone() => Ok(false),
            Err(failure) => Err(failure.into_error(&call)),
        }
    }

    /// Pauses it. This handle works again after [`Client::connect`] or [`Client::resume`].
    ///
    /// # Errors
    /// Those of [`Client::pause`].
    pub async fn pause(&self, pause: Pause) -> Result<PauseOutcome, SandboxError> {
        self.client.pause(&self.parts.id, pause).await
    }

    /// Sets its remaining lifetime; this may shorten it.
    ///
    /// # Errors
    /// Those of [`Client::set_timeout`].
    pub async fn set_timeout(&self, lifetime: Duration) -> Result<(), SandboxError> {
        self.client.set_timeout(&self.parts.id, lifetime).await
    }

    /// Its metrics, oldest sample first.
    ///
    /// # Errors
    /// Those of [`Client::metrics`].
    pub async fn metrics(&self, range: TimeRange) -> Result<Vec<rest::SandboxMetric>, SandboxError> {
        self.client.metrics(&self.parts.id, range).await
    }

    /// Its log entries.
    ///
    /// # Errors
    /// Those of [`Client::logs`].
    pub async fn logs(&self, query: &LogQuery) -> Result<Vec<rest::SandboxLogEntry>, SandboxError> {
        self.client.logs(&self.parts.id, query).await
    }

    /// Replaces all its egress rules.
    ///
    /// # Errors
    /// Those of [`Client::update_network`].
    pub async fn update_network(&self, network: &rest::NetworkUpdate) -> Result<(), SandboxError> {
        self.client.update_network(&self.parts.id, network).await
    }

    /// Saves its state as a snapshot.
    ///
    /// # Errors
    /// Those of [`Client::snapshot`].
    pub async fn snapshot(&self, snapshot: impl Into<NewSnapshot> + Send) -> Result<rest::Snapshot, SandboxError> {
        self.client.snapshot(&self.parts.id, snapshot).await
    }

    /// Starts copies of it.
    ///
    /// # Errors
    /// Those of [`Client::fork`].
    pub async fn fork(&self, fork: Fork) -> Result<Vec<Result<Self, ForkError>>, SandboxError> {
        self.client.fork(&self.parts.id, fork).await
    }

    /// Kills it and deletes its files. Returns false when it did not exist.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn kill(&self) -> Result<bool, CallError> {
        self.client.kill(&self.parts.id).await
    }

    /// The base URL of its signed links.
    pub(crate) fn link_url(&self) -> Result<url::Url, CallError> {
        let endpoints = &self.client.shared().endpoints;
        endpoints.link_url(&self.parts.id, self.parts.domain.as_deref()).map_err(|error| CallError::Protocol {
            call: format!("make a link to sandbox {}", self.parts.id),
            detail: error.to_string(),
        })
    }

    pub(crate) fn envd(&self) -> &Envd {
        &self.parts.envd
    }
}

/// Redacts the tokens.
impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("id", &self.parts.id)
            .field("template", &self.parts.template)
            .finish_non_exhaustive()
    }
}
