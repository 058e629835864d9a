//! Providers of sandboxes: an endpoint with a key, a plan and a price. The order of the
//! configuration is the order of preference.

mod breaker;
mod local;
mod orchestrator;
mod placement;
mod plan;
mod resources;
mod service;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sdk::{Client, ConfigError};
use serde::Serialize;

pub use breaker::{Admission, Breaker};
pub use local::{LocalEndpoint, LocalServer, NoLocalServer};
pub(crate) use orchestrator::CREATION;
pub use orchestrator::Orchestrator;
pub use placement::{CreateRequest, OrchestratorError, Placed, SkippedProvider};
pub use plan::{Plan, PlanReached, Price};
pub use resources::{Resources, ResourcesRefused};
pub(crate) use service::{Inspected, ListedSandbox, SandboxService};

use crate::config::{ProviderConfig, ProviderKind, Variables};
use crate::name::ProviderName;

/// A service that runs sandboxes.
pub struct Provider {
    config: ProviderConfig,
    plan: Plan,
    access: Access,
}

/// How to get a client.
enum Access {
    /// Built once: the environment does not change while the program runs.
    Service(Result<Client, Unusable>),
    /// Looked up for each use, since a restarted server may listen on another address.
    Local { server: Arc<dyn LocalServer>, last: Mutex<Option<(LocalEndpoint, Client)>> },
    #[cfg(test)]
    Simulated(Arc<dyn SandboxService>),
}

/// Why no request can be sent to a provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("E2B API key not configured")]
    NoKey,
    #[error("{0}")]
    Misconfigured(String),
    #[error(transparent)]
    NoLocalServer(#[from] NoLocalServer),
}

impl From<ConfigError> for Unusable {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::NoApiKey => Self::NoKey,
            other => Self::Misconfigured(other.to_string()),
        }
    }
}

impl Provider {
    /// From a resolved configuration; the key comes from the variable that it names.
    pub fn new(config: ProviderConfig, variables: Variables<'_>, local: &Arc<dyn LocalServer>) -> Self {
        let plan = config.plan();
        let access = match config.kind {
            ProviderKind::E2b => Access::Service(service(&config, variables)),
            ProviderKind::Local => Access::Local { server: Arc::clone(local), last: Mutex::new(None) },
        };
        Self { config, plan, access }
    }

    #[cfg(test)]
    pub(crate) fn simulated(config: ProviderConfig, service: Arc<dyn SandboxService>) -> Self {
        Self { plan: config.plan(), config, access: Access::Simulated(service) }
    }

    pub fn name(&self) -> &ProviderName {
        &self.config.name
    }

    /// Whether it is the server of this machine.
    pub fn is_local(&self) -> bool {
        self.config.kind == ProviderKind::Local
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn price(&self) -> Price {
        self.config.price()
    }

    /// The template of a sandbox unless a request names another.
    pub fn template(&self) -> &str {
        self.config.template.as_deref().unwrap_or("base")
    }

    /// Why no request can be sent, if that is known without trying.
    pub fn unusable(&self) -> Option<&Unusable> {
        match &self.access {
            Access::Service(client) => client.as_ref().err(),
            Access::Local { .. } => None,
            #[cfg(test)]
            Access::Simulated(_) => None,
        }
    }

    /// Its sandboxes.
    pub(crate) async fn service(&self) -> Result<Arc<dyn SandboxService>, Unusable> {
        match &self.access {
            #[cfg(test)]
            Access::Simulated(service) => Ok(Arc::clone(service)),
            _ => Ok(Arc::new(self.client().await?)),
        }
    }

    /// A client for this provider.
    ///
    /// # Errors
    /// [`Unusable`] with the reason why there is none.
    pub async fn client(&self) -> Result<Client, Unusable> {
        let (server, last) = match &self.access {
            Access::Service(client) => return client.clone(),
            Access::Local { server, last } => (server, last),
            #[cfg(test)]
            Access::Simulated(_) => return Err(Unusable::Misconfigured("it is simulated".to_owned())),
        };
        let endpoint = server.endpoint().await?;
        let mut last = last.lock();
        if let Some((known, client)) = last.as_ref()
            && *known == endpoint
        {
            return Ok(client.clone());
        }
        let client = builder()
            .api_key(endpoint.api_key.clone())
            .api_url(&endpoint.url)
            .sandbox_url(&endpoint.url)
            .volume_url(&endpoint.url)
            .build()?;
        *last = Some((endpoint, client.clone()));
        Ok(client)
    }

    /// What it keeps of a sandbox, and for how long.
    pub fn limits(&self) -> Limits {
        let Plan { longest_lifetime, concurrent_sandboxes, creations_per_minute, minutes_per_month } = self.plan;
        Limits {
            ephemeral: "filesystem lost when stopped",
            paused: match self.config.kind {
                ProviderKind::E2b => "filesystem and memory kept while paused",
                ProviderKind::Local => "filesystem kept while paused; memory lost when this machine restarts",
            },
            longest_lifetime_seconds: longest_lifetime.map(|longest| longest.as_secs()),
            concurrent_sandboxes,
            creations_per_minute,
            minutes_per_month,
        }
    }
}

fn builder() -> sdk::ClientBuilder {
    Client::builder().ignore_environment().user_agent(concat!("sandbar/", env!("CARGO_PKG_VERSION")))
}

fn service(config: &ProviderConfig, variables: Variables<'_>) -> Result<Client, Unusable> {
    let key = config.api_key_env.as_deref().and_then(variables).ok_or(Unusable::NoKey)?;
    let mut builder = builder().api_key(key);
    if let Some(url) = &config.api_url {
        builder = builder.api_url(url);
    }
    if let Some(url) = &config.sandbox_url {
        builder = builder.sandbox_url(url);
    }
    if let Some(domain) = &config.domain {
        builder = builder.domain(domain);
    }
    Ok(builder.build()?)
}

/// What a provider keeps of a sandbox, reported with every placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    pub ephemeral: &'static str,
    pub paused: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_lifetime_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_sandboxes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creations_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minutes_per_month: Option<u64>,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.ephemeral, self.paused)?;
        if let Some(seconds) = self.longest_lifetime_seconds {
            let longest = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            write!(f, "; a sandbox lives for {longest:#} at most, then another takes its place")?;
        }
        Ok(())
    }
}

/// The timeout of every request except creating a sandbox.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
