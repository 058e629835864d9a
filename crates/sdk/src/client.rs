//! The client: where the services are, how long to wait, and the connections all its sandboxes share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::config::{ConfigError, Endpoints, KEEPALIVE, REQUEST_DEADLINE};
use crate::secret::Secret;
use crate::transport::{Http, HttpOptions, LONGEST_WAIT};

/// A connection to one E2B service. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    deadline: Duration,
    longest_wait: Duration,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) endpoints: Endpoints,
    pub(crate) http: Http,
    pub(crate) keepalive: Duration,
    /// Found out by a call: the server has only the first generation of the protocol.
    pub(crate) first_generation: AtomicBool,
}

impl Client {
    /// A client as `E2B_API_KEY`, `E2B_API_URL`, `E2B_SANDBOX_URL` and `E2B_DOMAIN` say.
    ///
    /// # Errors
    /// [`ConfigError::NoApiKey`] when there is no key; others when a variable cannot be what it is for.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::builder().build()
    }

    /// A client by options; what is not set comes from the environment.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The same client, waiting for answers as long as `deadline` instead of a minute.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The same client, which waits no longer than this before it sends a request again, and gives up when the server asks
    /// for more: for those who have another service to turn to. Ten seconds unless set.
    #[must_use]
    pub fn waiting_at_most(&self, longest_wait: Duration) -> Self {
        Self { longest_wait, ..self.clone() }
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.longest_wait
    }

    /// How long calls wait for an answer.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The control plane's URL.
    pub fn api_url(&self) -> &str {
        self.shared.endpoints.api_url.as_str()
    }

    /// The one URL for the traffic of all sandboxes, where one is set; else each has a host of its own.
    pub fn sandbox_url(&self) -> Option<&url::Url> {
        self.shared.endpoints.sandbox_url.as_ref()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

/// Options of a [`Client`]. An option that is not set comes from its environment variable, then from the default.
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
    /// The key of the service; `E2B_API_KEY`.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<Secret>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// The control plane; `E2B_API_URL`, else `https://api.DOMAIN`.
    #[must_use]
    pub fn api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// One base URL for the traffic of all sandboxes, which headers tell apart; `E2B_SANDBOX_URL`.
    #[must_use]
    pub fn sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = Some(url.into());
        self
    }

    /// The content of volumes; `E2B_VOLUME_API_URL`, else as the control plane's default.
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

    /// How long calls wait for an answer; a minute unless set.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The longest silence of a healthy stream, in whole seconds; 20 unless set. After twice that the client looks
    /// whether the sandbox still lives.
    #[must_use]
    pub fn keepalive(mut self, interval: Duration) -> Self {
        self.keepalive = Some(interval);
        self
    }

    /// A proxy for everything; unless set, the environment's (`HTTPS_PROXY`, `NO_PROXY`, …).
    #[must_use]
    pub fn proxy(mut self, proxy: reqwest::Proxy) -> Self {
        self.http.proxy = Some(proxy);
        self
    }

    /// A certificate to trust besides the system's.
    #[must_use]
    pub fn root_certificate(mut self, certificate: reqwest::Certificate) -> Self {
        self.http.roots.push(certificate);
        self
    }

    /// What the client calls itself.
    #[must_use]
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.http.user_agent = Some(name.into());
        self
    }

    /// Takes nothing from the environment but proxies.
    #[must_use]
    pub fn ignore_environment(mut self) -> Self {
        self.ignore_environment = true;
        self
    }

    /// # Errors
    /// [`ConfigError`] when a key is missing or an option cannot be what it is for.
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
        let shared =
            Shared { endpoints, http: Http::new(self.http)?, keepalive, first_generation: AtomicBool::new(false) };
        let deadline = self.deadline.unwrap_or(REQUEST_DEADLINE);
        Ok(Client { shared: Arc::new(shared), deadline, longest_wait: LONGEST_WAIT })
    }
}
