//! Requests for sandboxes, and their results.

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

/// A request for a sandbox. Its `Debug` omits values of variables.
#[derive(Clone)]
pub struct CreateRequest {
    /// [`None`]: each provider's default.
    pub template: Option<String>,
    pub resources: Resources,
    pub env: BTreeMap<String, Secret>,
    pub metadata: BTreeMap<String, String>,
    /// The wanted lifetime; the plan may allow less.
    pub lifetime: Duration,
    /// Only this provider: a workspace stays with its provider unless it is moved.
    pub provider: Option<ProviderName>,
    /// Tried first; the others follow in their order.
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

/// A created sandbox.
#[derive(Debug)]
pub struct Placed {
    pub sandbox: Sandbox,
    pub provider: ProviderName,
    /// The preferred providers that were skipped.
    pub skipped: Vec<SkippedProvider>,
    pub limits: Limits,
    pub size: Size,
    pub started_at: Timestamp,
    /// By this machine's clock and the provider's lifetime; the supervisor extends it.
    pub ends_at: Timestamp,
}

/// A provider that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedProvider {
    pub provider: ProviderName,
    pub reason: String,
}

/// Why no sandbox was created.
#[derive(Debug, thiserror::Error)]
pub enum OrchestratorError {
    #[error("no provider could make a sandbox: {}", list(.skipped))]
    NoProvider { skipped: Vec<SkippedProvider> },
    #[error("there is no provider {name}; the configuration has {}", known.join(", "))]
    UnknownProvider { name: ProviderName, known: Vec<String> },
    /// The request is invalid; no other provider was tried.
    #[error("provider {provider} refused")]
    Refused { provider: ProviderName, source: CreateError },
    #[error(transparent)]
    Resources(#[from] ResourcesRefused),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

fn list(skipped: &[SkippedProvider]) -> String {
    let one = |skipped: &SkippedProvider| format!("{}: {}", skipped.provider, skipped.reason);
    skipped.iter().map(one).collect::<Vec<_>>().join("; ")
}
