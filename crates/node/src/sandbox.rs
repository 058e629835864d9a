//! What is known of one sandbox, and what can be asked of one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use engine::net::Rules;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::egress::Egress;
use crate::id::{SandboxId, Token};
use crate::ingress::Ingress;
use crate::lifecycle::Kept;
use crate::ports::Instance;
use crate::template::{Defaults, Resolved, Template};
use crate::volume::VolumeMount;

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
    pub pids: u32,
}

/// What happens when a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    Kill,
    Pause(Kept),
}

/// How a sandbox stands between two changes; what is kept of its state across restarts of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Running,
    Paused(Kept),
}

/// Everything that must survive a restart of the server.
#[derive(Clone, PartialEq)]
pub struct Record {
    pub id: SandboxId,
    pub template: Template,
    pub standing: Standing,
    /// Where the machine is found again; absent when no process of it is left.
    pub instance: Option<Instance>,
    pub started_at: Timestamp,
    /// When the lease ends; for a paused sandbox, when it was paused.
    pub end_at: Timestamp,
    /// The length last asked for; an automatic resume asks for it again.
    pub lease: Duration,
    pub resources: Resources,
    /// Opens the guest. Never changes: clients keep theirs.
    pub access_token: Option<Token>,
    /// Opens every other port, when public traffic is not allowed.
    pub traffic_token: Option<Token>,
    /// As the last call said it; absent means allowed.
    pub allow_internet: Option<bool>,
    pub egress: Egress,
    pub ingress: Ingress,
    pub volumes: Vec<VolumeMount>,
    pub on_timeout: OnTimeout,
    pub auto_resume: bool,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Stored for the client that sent it.
    pub mcp: Option<Value>,
    /// What the kernel inside claims as its boot; a boot from files alone changes it.
    pub boot_id: String,
    /// What its template set.
    pub defaults: Defaults,
}

impl Record {
    /// What the sandbox may reach.
    pub(crate) fn egress_rules(&self) -> Rules {
        self.egress.rules(self.allow_internet != Some(false))
    }
}

/// Variables and tokens are secrets.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("id", &self.id)
            .field("standing", &self.standing)
            .field("instance", &self.instance)
            .field("end_at", &self.end_at)
            .finish_non_exhaustive()
    }
}

/// What a create call asks for, checked and with its defaults applied.
#[derive(Clone)]
pub struct NewSandbox {
    pub from: Resolved,
    pub timeout: Duration,
    pub resources: Resources,
    /// Off: whoever reaches the guest may use it.
    pub secure: bool,
    pub public_traffic: bool,
    pub allow_internet: Option<bool>,
    pub egress: Egress,
    pub ingress: Ingress,
    pub volumes: Vec<VolumeMount>,
    pub on_timeout: OnTimeout,
    pub auto_resume: bool,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    pub mcp: Option<Value>,
}

/// A create that may be repeated: the same key and the same fingerprint mean the same sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeatable {
    pub key: String,
    /// A digest of the request's body.
    pub fingerprint: String,
}

/// What a create answers, now and when it is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub id: SandboxId,
    pub template: Template,
    pub access_token: Option<Token>,
    pub traffic_token: Option<Token>,
}

impl From<&Record> for Created {
    fn from(record: &Record) -> Self {
        Self {
            id: record.id.clone(),
            template: record.template.clone(),
            access_token: record.access_token.clone(),
            traffic_token: record.traffic_token.clone(),
        }
    }
}
