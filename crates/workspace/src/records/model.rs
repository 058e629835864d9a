//! What is remembered, in this crate's own words.

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
use crate::snapshot::ProjectId;

/// A workspace, as it must be known to the process that comes after this one.
#[derive(Clone, PartialEq)]
pub struct WorkspaceRecord {
    pub name: WorkspaceName,
    /// Whose snapshots are its own.
    pub project: ProjectId,
    /// Where it runs, and stays unless it is moved.
    pub provider: ProviderName,
    /// The sandbox it is in; none while there is none.
    pub sandbox: Option<SandboxId>,
    pub state: WorkspaceState,
    pub paused: bool,
    pub template: Option<String>,
    pub created_at: Timestamp,
    /// The end of the workspace itself, not of its sandbox.
    pub expires_at: Timestamp,
    /// What must run again in every new sandbox, by name.
    pub services: Value,
    /// What every new sandbox gets again. The values are secrets.
    pub env: BTreeMap<String, Secret>,
    /// What those who keep it need to know after a restart, in their own words.
    pub details: Value,
}

/// Where a workspace is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceState {
    /// Some steps of the set-up are still to be done.
    SettingUp,
    Ready,
    /// Between two sandboxes: rotation or a change of provider.
    Moving,
    /// Without a sandbox; a snapshot brings it back.
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

/// Names of variables, not their values.
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

/// The right to act on a workspace, for a while. Later leases have higher numbers, and what carries an older number than
/// the newest lease is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub workspace: WorkspaceName,
    /// Who has it, for people: a process and its machine.
    pub owner: String,
    pub fence: i64,
    pub until: Timestamp,
}

/// How big a sandbox is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Size {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
}

/// Who pays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payer {
    pub project: String,
    pub job: Option<String>,
}

/// A sandbox that was asked for. Noted before the provider is asked, so that a crash forgets none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    pub id: Uuid,
    pub at: Timestamp,
    pub provider: ProviderName,
    pub payer: Payer,
    /// Known once the provider has answered.
    pub sandbox: Option<SandboxId>,
}

/// A stretch of time in which a sandbox ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    pub provider: ProviderName,
    pub sandbox: SandboxId,
    pub payer: Payer,
    pub size: Size,
    pub started_at: Timestamp,
    /// When the provider ends it if nobody does anything: a process that dies leaves this as the latest possible end.
    pub until: Timestamp,
    /// When it stopped; none while nobody has seen that.
    pub ended_at: Option<Timestamp>,
}

impl Interval {
    /// The end as far as it is known: an interval nobody closed did not outlast its sandbox.
    pub fn end_by(&self, now: Timestamp) -> Timestamp {
        self.ended_at.unwrap_or(self.until.min(now)).min(now)
    }

    pub fn runs_at(&self, now: Timestamp) -> bool {
        self.ended_at.is_none() && self.started_at <= now && now < self.until
    }
}

/// How much a project keeps in the object store from `at` on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub project: String,
    pub at: Timestamp,
    pub bytes: u64,
}

/// What a model was given and gave. The caller knows what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Noting the same twice counts once.
    pub id: Uuid,
    pub at: Timestamp,
    pub payer: Payer,
    pub model: String,
    pub input: u64,
    pub output: u64,
    pub cost: Usd,
}

/// What a payer had of a model within an hour, together: a run notes every turn, and nobody wants them one by one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spoken {
    /// The first time.
    pub at: Timestamp,
    pub payer: Payer,
    pub model: String,
    pub input: u64,
    pub output: u64,
    pub cost: Usd,
}

impl Spoken {
    /// So many microseconds are put together. Periods begin and end with an hour.
    pub(super) const TOGETHER: i64 = 3_600_000_000;
}

/// Which usage is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// What touches the time from here on; none: everything.
    pub since: Option<Timestamp>,
    pub project: Option<String>,
    pub provider: Option<ProviderName>,
}

/// Usage as it was noted. Of [`Stored`] there is also, for each project, the last level from before the query's time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRows {
    pub creations: Vec<Creation>,
    pub intervals: Vec<Interval>,
    pub stored: Vec<Stored>,
    pub spoken: Vec<Spoken>,
}

/// A sandbox that was made for a workspace and that no record names, with how long that has been
/// known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrphanRecord {
    #[serde(rename = "sandboxID", serialize_with = "sandbox_text")]
    pub sandbox: SandboxId,
    /// Whose sandbox it is.
    pub provider: ProviderName,
    /// The workspace that its metadata names.
    pub workspace: String,
    /// When a sweep found it first, by the wall clock.
    pub seen_at: Timestamp,
    /// How long sweeps have seen it since, by the steady clocks of their processes.
    #[serde(skip)]
    pub watched: Duration,
}

fn sandbox_text<S: serde::Serializer>(id: &SandboxId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

/// Somebody was told that a share of a limit is used. Each is noted once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What the limit is of, with its figure: a limit that was raised warns again.
    pub limit: String,
    /// The month, or `total`.
    pub period: String,
    pub percent: u8,
    pub at: Timestamp,
}

/// What is known of a provider's health, with a number that changes with every write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub breaker: crate::provider::Breaker,
    /// The last failure, for people.
    pub reason: String,
    pub version: i64,
}

pub(super) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
