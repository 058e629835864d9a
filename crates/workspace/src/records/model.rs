//! The domain types of the records.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use sdk::{SandboxId, Secret};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::ledger::Usd;
use crate::name::{ProviderName, WorkspaceName};
use checkpoint::ProjectId;

/// A workspace, with all that the next process needs to continue it.
#[derive(Clone, PartialEq)]
pub struct WorkspaceRecord {
    pub name: WorkspaceName,
    /// The project that owns its checkpoints.
    pub project: ProjectId,
    /// The current provider; it changes only by a move.
    pub provider: ProviderName,
    /// The current sandbox, if there is one.
    pub sandbox: Option<SandboxId>,
    pub state: WorkspaceState,
    pub paused: bool,
    pub template: Option<String>,
    pub created_at: Timestamp,
    /// The end of the workspace itself, not of its sandbox.
    pub expires_at: Timestamp,
    /// The services to start in every new sandbox, by name.
    pub services: Value,
    /// The variables that every new sandbox gets. The values are secrets.
    pub env: BTreeMap<String, Secret>,
    /// The persisted state of the workspace module, opaque to the records.
    pub details: Value,
}

/// The lifecycle state of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceState {
    /// Setup is not complete.
    SettingUp,
    Ready,
    /// A handover is under way: a rotation or a change of provider.
    Moving,
    /// It has no sandbox; resuming restores a checkpoint.
    Stopped,
}

impl WorkspaceState {
    pub(super) const ALL: [Self; 4] = [Self::SettingUp, Self::Ready, Self::Moving, Self::Stopped];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::SettingUp => "setting_up",
            Self::Ready => "ready",
            Self::Moving => "moving",
            Self::Stopped => "stopped",
        }
    }
}

/// Shows names of variables, not their values.
impl fmt::Debug for WorkspaceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkspaceRecord")
            .field("name", &self.name)
            .field("project", &self.project)
            .field("provider", &self.provider)
            .field("sandbox", &self.sandbox)
            .field("state", &self.state)
            .field("paused", &self.paused)
            .field("expires_at", &self.expires_at)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// The right to act on a workspace, for a limited time. Each lease has a higher fencing number than
/// those before it, and a write that carries an older number is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub workspace: WorkspaceName,
    /// The owning process and its machine, readable.
    pub owner: String,
    pub fence: i64,
    pub until: Timestamp,
}

/// The size of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Size {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
}

/// The account of usage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payer {
    pub project: String,
    pub job: Option<String>,
}

/// A requested sandbox. Recorded before the request is sent, so that a crash loses none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    pub id: Uuid,
    pub at: Timestamp,
    pub provider: ProviderName,
    pub payer: Payer,
    /// Known once the provider has answered.
    pub sandbox: Option<SandboxId>,
}

/// A time interval in which a sandbox ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    pub provider: ProviderName,
    pub sandbox: SandboxId,
    pub payer: Payer,
    pub size: Size,
    pub started_at: Timestamp,
    /// When the provider ends the sandbox by itself: the latest possible end if the process dies.
    pub until: Timestamp,
    /// When it stopped; [`None`] until a process has seen that.
    pub ended_at: Option<Timestamp>,
}

impl Interval {
    /// The end as far as it is known: an interval that was never closed ends with its sandbox.
    pub fn end_by(&self, now: Timestamp) -> Timestamp {
        self.ended_at.unwrap_or(self.until.min(now)).min(now)
    }

    pub fn runs_at(&self, now: Timestamp) -> bool {
        self.ended_at.is_none() && self.started_at <= now && now < self.until
    }
}

/// How many bytes a project stores from `at` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub project: String,
    pub at: Timestamp,
    pub bytes: u64,
}

/// The tokens of one model call. The caller computes the cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Recording the same id twice counts once.
    pub id: Uuid,
    pub at: Timestamp,
    pub payer: Payer,
    pub model: String,
    pub input: u64,
    pub output: u64,
    pub cost: Usd,
}

/// The tokens of a payer and model within an hour, summed: a run records every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenUsage {
    /// The first call.
    pub at: Timestamp,
    pub payer: Payer,
    pub model: String,
    pub input: u64,
    pub output: u64,
    pub cost: Usd,
}

impl TokenUsage {
    /// The bucket size in microseconds. Billing periods start and end on the hour.
    pub(super) const BUCKET_US: i64 = 3_600_000_000;
}

/// Filters a usage query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Only usage that touches the time from here on; [`None`]: all.
    pub since: Option<Timestamp>,
    pub project: Option<String>,
    pub provider: Option<ProviderName>,
}

/// Recorded usage. [`Stored`] includes, for each project, the last level before the query's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRows {
    pub creations: Vec<Creation>,
    pub intervals: Vec<Interval>,
    pub stored: Vec<Stored>,
    pub token_usage: Vec<TokenUsage>,
}

/// A sandbox that was made for a workspace and that no record names, with how long that has been
/// observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrphanRecord {
    #[serde(rename = "sandboxID", serialize_with = "sandbox_text")]
    pub sandbox: SandboxId,
    /// The provider that runs it.
    pub provider: ProviderName,
    /// The workspace that its metadata names.
    pub workspace: String,
    /// When a sweep found it first, by the wall clock.
    pub seen_at: Timestamp,
    /// How long sweeps have observed it since, by the monotonic clocks of their processes.
    #[serde(skip)]
    pub watched: Duration,
}

fn sandbox_text<S: serde::Serializer>(id: &SandboxId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

/// A reported limit warning. Each is recorded once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The limit with its figure: a raised limit warns again.
    pub limit: String,
    /// The month, or `total`.
    pub period: String,
    pub percent: u8,
    pub at: Timestamp,
}

/// The health of a provider, with a version for compare-and-swap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub breaker: crate::provider::Breaker,
    /// The last failure, readable.
    pub reason: String,
    pub version: i64,
}

pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
