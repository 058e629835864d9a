//! The client: endpoints, deadlines, and the connection pool shared by all its sandboxes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::config::{ConfigError, Endpoints, KEEPALIVE, REQUEST_DEADLINE};
use crate::transport::{Http, HttpOptions, MAX_BACKOFF};
use secret::Secret;

/// A client of one E2B service. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    deadline: Duration,
    max_backoff: Duration,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) endpoints: Endpoints,
    pub(crate) http: Http,
    pub(crate) keepalive: Duration,
    /// Learned from a 404: the server has only API version 1.
    pub(crate) only_api_v1: AtomicBool,
}

impl Client {
    /// Configures a client from `E2B_API_KEY`, `E2B_API_URL`, `E2B_SANDBOX_URL` and `E2B_DOMAIN`.
    ///
    /// # Errors
    /// [`ConfigError::NoApiKey`] without a key; another [`ConfigError`] when a variable is invalid.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::builder().build()
    }

    /// Configures a client by options; unset options come from the environment.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A copy of this client that waits for a response as long as `deadline` instead of one minute.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// A copy of this client that waits at most `longest` before it retries a request, and fails
    /// when the server asks for more: for callers that can fall back to another service. Ten
    /// seconds by default.
    #[must_use]
    pub fn with_max_backoff(&self, max_backoff: Duration) -> Self {
        Self { max_backoff, ..self.clone() }
    }

    pub(crate) fn max_backoff(&self) -> Duration {
        self.max_backoff
    }

    /// How long calls wait for a response.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The control plane's URL.
    pub fn api_url(&self) -> &str {
        self.shared.endpoints.api_url.as_str()
    }

    /// The base URL for the traffic of all sandboxes, if set; without one each sandbox has its own
    /// host.
    pub fn sandbox_url(&self) -> Option<&url::Url> {
        self.shared.endpoints.sandbox_url.as_ref()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

/// Options of a [`Client`]. An unset option comes from its environment variable, then from the
/// default.
#[derive(Debug, Clone, Default)]
pub struct ClientBuilder {
    api_key: Option<Secret>,
    api_url: Option<String>,
    sandbox_url: Option<String>,
    volume_url: Option<String>,
    domain: Option<String>,
    deadline: Option<Duration>,
    keepalive: Option<Duration>,
    http: HttpOptions,
    ignore_environment: bool,
}

impl ClientBuilder {
    /// The API key; `E2B_API_KEY`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<Secret>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// The control plane's URL; `E2B_API_URL`, else `https://api.DOMAIN`.
    #[must_use]
    pub fn api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// One base URL for the traffic of all sandboxes, which headers distinguish; `E2B_SANDBOX_URL`.
    #[must_use]
    pub fn sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = Some(url.into());
        self
    }

    /// The URL of the volume content API; `E2B_VOLUME_API_URL`, else the control plane's default.
    #[must_use]
    pub fn volume_url(mut self, url: impl Into<String>) -> Self {
        self.volume_url = Some(url.into());
        self
    }

    /// The base domain; `E2B_DOMAIN`, else `e2b.app`.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// How long calls wait for a response; one minute by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The keepalive interval of streams, in whole seconds; 20 by default. After two silent
    /// intervals the client checks whether the sandbox still runs.
    #[must_use]
    pub fn keepalive(mut self, interval: Duration) -> Self {
        self.keepalive = Some(interval);
        self
    }

    /// A proxy for all requests; by default the environment's (`HTTPS_PROXY`, `NO_PROXY`, …).
    #[must_use]
    pub fn proxy(mut self, proxy: reqwest::Proxy) -> Self {
        self.http.proxy = Some(proxy);
        self
    }

    /// A root certificate to trust besides the system's.
    #[must_use]
    pub fn root_certificate(mut self, certificate: reqwest::Certificate) -> Self {
        self.http.roots.push(certificate);
        self
    }

    /// The `User-Agent` header.
    #[must_use]
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.http.user_agent = Some(name.into());
        self
    }

    /// Ignores all environment variables except those for proxies.
    #[must_use]
    pub fn ignore_environment(mut self) -> Self {
        self.ignore_environment = true;
        self
    }

    /// # Errors
    /// [`ConfigError`] when the key is missing or an option is invalid.
    pub fn build(self) -> Result<Client, ConfigError> {
        let variable = |name: &str| {
            let value = if self.ignore_environment { None } else { std::env::var(name).ok() };
            value.filter(|value| !value.is_empty())
        };
        let or = |set: &Option<String>, name: &str| set.clone().or_else(|| variable(name));
        let key = self.api_key.clone().or_else(|| variable("E2B_API_KEY").map(Secret::from));
        let endpoints = Endpoints::new(
            key.ok_or(ConfigError::NoApiKey)?,
            or(&self.api_url, "E2B_API_URL").as_deref(),
            or(&self.sandbox_url, "E2B_SANDBOX_URL").as_deref(),
            or(&self.volume_url, "E2B_VOLUME_API_URL").as_deref(),
            or(&self.domain, "E2B_DOMAIN").as_deref(),
        )?;
        let keepalive = self.keepalive.unwrap_or(KEEPALIVE);
        if keepalive.as_secs() == 0 || keepalive.subsec_nanos() != 0 {
            return Err(ConfigError::BadKeepalive(keepalive));
        }
        let shared = Shared { endpoints, http: Http::new(self.http)?, keepalive, only_api_v1: AtomicBool::new(false) };
        let deadline = self.deadline.unwrap_or(REQUEST_DEADLINE);
        Ok(Client { shared: Arc::new(shared), deadline, max_backoff: MAX_BACKOFF })
    }
}
