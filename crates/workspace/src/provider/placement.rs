//! What is asked of providers, and what comes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use sdk::{CreateError, Sandbox, Secret};
use serde::Serialize;

use super::Limits;
use super::resources::{Resources, ResourcesRefused};
use crate::name::ProviderName;
use crate::records::{Payer, RecordsError, Size};

/// A sandbox that is wanted. Its `Debug` shows no values of variables.
#[derive(Clone)]
pub struct CreateRequest {
    /// None: each provider's own default.
    pub template: Option<String>,
    pub resources: Resources,
    pub env: BTreeMap<String, Secret>,
    pub metadata: BTreeMap<String, String>,
    /// What is wanted; the plan may allow less.
    pub lifetime: Duration,
    /// Only this one: a run stays where it is unless it is moved.
    pub provider: Option<ProviderName>,
    /// Asked before all others; those follow in their order.
    pub prefer: Option<ProviderName>,
    pub payer: Payer,
}

impl fmt::Debug for CreateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreateRequest")
            .field("template", &self.template)
            .field("resources", &self.resources)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("lifetime", &self.lifetime)
            .field("provider", &self.provider)
            .field("payer", &self.payer)
            .finish_non_exhaustive()
    }
}

/// A sandbox that was made.
#[derive(Debug)]
pub struct Placed {
    pub sandbox: Sandbox,
    pub provider: ProviderName,
    /// Those that come first and did not take it.
    pub skipped: Vec<Skipped>,
    pub limits: Limits,
    pub size: Size,
    pub started_at: Timestamp,
    /// By this machine's clock, as the provider lets it live; extending it is the keeper's work.
    pub ends_at: Timestamp,
}

/// A provider that was passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub provider: ProviderName,
    pub reason: String,
}

/// No sandbox was made.
#[derive(Debug, thiserror::Error)]
pub enum OrchestratorError {
    #[error("no provider could make a sandbox: {}", list(.skipped))]
    NobodyCould { skipped: Vec<Skipped> },
    #[error("there is no provider {name}; the configuration has {}", known.join(", "))]
    UnknownProvider { name: ProviderName, known: Vec<String> },
    /// The request is wrong; nobody else was asked.
    #[error("provider {provider} refused")]
    Refused { provider: ProviderName, source: CreateError },
    #[error(transparent)]
    Resources(#[from] ResourcesRefused),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

fn list(skipped: &[Skipped]) -> String {
    let one = |skipped: &Skipped| format!("{}: {}", skipped.provider, skipped.reason);
    skipped.iter().map(one).collect::<Vec<_>>().join("; ")
}
