//! The record of a sandbox, and the parameters of a new one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use egress::Rules;
use engine::{Instance, Resources};
use jiff::Timestamp;
use protocol::SandboxId;
use serde_json::Value;

use crate::egress::Egress;
use crate::id::Token;
use crate::ingress::Ingress;
use crate::lifecycle::PauseMode;
use crate::template::{Defaults, Resolved, Template};
use crate::volume::VolumeMount;

/// What happens when the lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    Kill,
    Pause(PauseMode),
}

/// What a sandbox is to be: as its create call asks and its record keeps.
#[derive(Clone, PartialEq)]
pub struct SandboxSpec {
    pub resources: Resources,
    /// As the last call set it; absent means allowed.
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
}

/// The recorded state of a sandbox, which survives restarts of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistedState {
    Running,
    Paused(PauseMode),
}

/// Everything about a sandbox that must survive a restart of the server.
#[derive(Clone, PartialEq)]
pub struct Record {
    pub id: SandboxId,
    pub template: Template,
    pub standing: PersistedState,
    /// Identifies the machine; absent if none of its processes is left.
    pub instance: Option<Instance>,
    pub started_at: Timestamp,
    /// When the lease ends; for a paused sandbox, when it was paused.
    pub end_at: Timestamp,
    /// The timeout of the last call; an automatic resume uses it again.
    pub lease: Duration,
    pub spec: SandboxSpec,
    /// Grants access to the guest. Never changes, since clients keep it.
    pub access_token: Option<Token>,
    /// Grants access to all other ports if public traffic is not allowed.
    pub traffic_token: Option<Token>,
    /// The boot id that the kernel reports in the sandbox; a boot from files changes it.
    pub boot_id: String,
    /// The defaults of its template.
    pub defaults: Defaults,
}

impl Record {
    /// The rules of its egress lists and its internet access.
    pub(crate) fn egress_rules(&self) -> Rules {
        self.spec.egress.rules(self.spec.allow_internet != Some(false))
    }
}

/// Without variables and tokens, which are secrets.
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

/// A validated create call with its defaults applied.
#[derive(Clone)]
pub struct NewSandbox {
    pub from: Resolved,
    pub timeout: Duration,
    /// If off, the guest requires no access token.
    pub secure: bool,
    pub public_traffic: bool,
    pub spec: SandboxSpec,
}

/// The idempotency of a create call: an equal key and an equal fingerprint mean the same sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub key: String,
    /// A digest of the request's body.
    pub fingerprint: String,
}

/// The answer to a create call, also when it is repeated.
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
