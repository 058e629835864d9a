//! Bodies of the E2B control plane. Field names are the wire's, including its mixed cases; unknown
//! fields are ignored.
//!
//! Times are RFC 3339 strings: the sender chooses the precision, and the same time must always be
//! sent as the same string.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use crate::guest::LogLevel;

pub mod secret;
pub mod template;
pub mod volume;

/// Servers written in Go send `null` for an empty list or map.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// The body of every error response. `code` repeats the status: JS clients read `code`, Python
/// clients the status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub code: u16,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

/// `error_code` of a 410: the sandbox has a record, but its files are missing from the server's
/// pool. The server neither boots it empty nor removes the record. A client restores its own copy;
/// an operator runs `sandbar recover`.
pub const SANDBOX_FILES_MISSING: &str = "sandbox_files_missing";
/// `error_code` of a 410: the files of the template or snapshot are missing. Rebuild it.
pub const TEMPLATE_FILES_MISSING: &str = "template_files_missing";
/// `error_code` of a 410: the files of a volume are missing.
pub const VOLUME_FILES_MISSING: &str = "volume_files_missing";

/// Whether the server accepts changes (`GET /ready`, a Sandbar extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    pub ready: bool,
    pub parts: BTreeMap<String, PartState>,
    /// Database rows that this version cannot parse; only callers with the API key receive them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "setAside")]
    pub set_aside: Vec<SetAsideRow>,
}

/// A row that stays in the database unparsed, together with the files it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAsideRow {
    pub table: String,
    pub id: String,
    pub cause: String,
}

/// One component of the server. Only callers with the API key receive the fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    pub ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The create body of API versions 1 and 2. The endpoint chooses the defaults of absent fields.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: Option<String>,
    pub timeout: Option<i64>,
    pub auto_pause: Option<bool>,
    pub auto_pause_memory: Option<bool>,
    pub auto_resume: Option<AutoResume>,
    pub secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    pub network: Option<Network>,
    pub metadata: Option<BTreeMap<String, String>>,
    pub env_vars: Option<BTreeMap<String, String>>,
    pub mcp: Option<Value>,
    pub iam: Option<Value>,
    pub volume_mounts: Option<Vec<VolumeMount>>,
    /// Sandbar extension: the size of the sandbox.
    pub cpu_count: Option<i64>,
    #[serde(rename = "memoryMB")]
    pub memory_mb: Option<i64>,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: Option<i64>,
}

/// Redacts values of variables and MCP settings.
impl fmt::Debug for NewSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSandbox")
            .field("template_id", &self.template_id)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AutoResume {
    pub enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}

/// Ingress and egress rules of a sandbox.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// The older form: allows these networks and denies all others. Never in responses.
    #[serde(rename = "egressCIDRs", skip_serializing_if = "Option::is_none")]
    pub egress_cidrs: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<Value>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub https_ports: Option<Vec<u32>>,
}

/// Redacts the proxy password and the headers that rules set.
impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("allow_public_traffic", &self.allow_public_traffic)
            .field("allow_out", &self.allow_out)
            .field("deny_out", &self.deny_out)
            .finish_non_exhaustive()
    }
}

/// The response of create, connect and resume.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    pub envd_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    #[serde(default)]
    pub traffic_access_token: Option<String>,
    #[serde(default)]
    pub domain: Option<String>,
}

/// Redacts the tokens.
impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("sandbox_id", &self.sandbox_id)
            .field("template_id", &self.template_id)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    Running,
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Processes and memory, frozen, and the files.
    Full,
    /// Only the files; a resume boots again.
    Filesystem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Kill,
    Pause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    pub auto_resume: bool,
    pub on_timeout: OnTimeout,
}

/// One row of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    pub started_at: String,
    pub end_at: String,
    pub envd_version: String,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u32,
    pub state: SandboxState,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
}

/// All details of one sandbox.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    #[serde(flatten)]
    pub listed: ListedSandbox,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    #[serde(default)]
    pub allow_internet_access: Option<bool>,
    #[serde(default)]
    pub domain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Other servers may omit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
}

/// Redacts the token.
impl fmt::Debug for SandboxDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxDetail").field("listed", &self.listed).finish_non_exhaustive()
    }
}

/// The connect body of API versions 1 and 2; version 1 requires `timeout`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Connect {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resume {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pause {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Timeout {
    pub timeout: i64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Refresh {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
}

/// `PUT /sandboxes/{id}/network`: replaces the egress rules. Absent fields are cleared.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkUpdate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<Value>>>,
    #[serde(rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
}

/// Redacts the proxy password and the headers that rules set.
impl fmt::Debug for NetworkUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkUpdate")
            .field("allow_out", &self.allow_out)
            .field("deny_out", &self.deny_out)
            .field("allow_internet_access", &self.allow_internet_access)
            .finish_non_exhaustive()
    }
}

/// `POST /sandboxes/{id}/fork`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fork {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// One child of a fork: exactly one of the two fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkResult {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// `GET /sandbar/trash`, one row: files that no record names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recoverable {
    /// The name of the files; `recover` takes it.
    #[serde(rename = "filesID")]
    pub files_id: String,
    /// `sandbox`, `template`, `volume` or `unknown`.
    pub kind: String,
    /// The id of the sandbox, template or volume.
    pub id: Option<String>,
    pub name: Option<String>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Absent for a volume, which is not moved to the trash.
    pub trashed_at: Option<String>,
    pub deleted_at: Option<String>,
    pub bytes: Option<u64>,
}

/// `POST /sandbar/trash/{id}`: the recovered object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovered {
    /// `sandbox`, `template` or `volume`.
    pub kind: String,
    pub id: String,
    pub name: Option<String>,
}

/// `POST /sandboxes/{id}/snapshots`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NewSnapshot {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// A saved state that sandboxes can be created from: its id is a template reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub names: Vec<String>,
}

/// One sample; sizes in bytes. The Python client requires every field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxMetric {
    pub timestamp: String,
    pub timestamp_unix: i64,
    pub cpu_count: u32,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// The latest sample of several sandboxes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxesMetrics {
    pub sandboxes: BTreeMap<String, SandboxMetric>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLog {
    pub timestamp: String,
    pub line: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogEntry {
    pub timestamp: String,
    pub message: String,
    pub level: LogLevel,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// `GET /sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxLogs {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub logs: Vec<SandboxLog>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub log_entries: Vec<SandboxLogEntry>,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogPage {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub logs: Vec<SandboxLogEntry>,
}

/// `GET /sandbar/capabilities`: the server's extensions to E2B, by name, each with its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    pub server: String,
    /// Random, and the same at every address of the server. Older servers do not send it.
    #[serde(default, rename = "serverID", skip_serializing_if = "Option::is_none")]
    pub server_id: Option<String>,
    pub version: String,
    pub capabilities: BTreeMap<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_of_other_servers_parse() {
        let detail: SandboxDetail = serde_json::from_str(
            r#"{"templateID":"t","sandboxID":"i1","startedAt":"2026-01-01T00:00:00Z","endAt":"2026-01-01T00:05:00Z",
                "envdVersion":"0.1.5","cpuCount":2,"memoryMB":512,"state":"running","metadata":null}"#,
        )
        .expect("only the required fields");
        assert!(detail.listed.metadata.is_empty() && detail.lifecycle.is_none());
        let logs: SandboxLogs = serde_json::from_str(r#"{"logs":[{"timestamp":"t","line":"l"}]}"#).expect("old logs");
        assert_eq!((logs.logs.len(), logs.log_entries.len()), (1, 0));
    }

    #[test]
    fn create_bodies_of_both_api_versions_parse() {
        let a: NewSandbox = serde_json::from_str(
            r#"{"templateID":"base","allow_internet_access":true,"autoPause":false,"envVars":{"E":"1"},
                "metadata":{"m":"1"},"secure":true,"timeout":300,"later":1}"#,
        )
        .expect("API version 1");
        assert_eq!(
            (a.template_id.as_deref(), a.allow_internet_access, a.timeout),
            (Some("base"), Some(true), Some(300))
        );
        let b: NewSandbox =
            serde_json::from_str(r#"{"templateID":"base","memoryMB":512,"diskSizeMB":64}"#).expect("API version 2");
        assert_eq!((b.timeout, b.memory_mb, b.disk_size_mb), (None, Some(512), Some(64)));
    }

    #[test]
    fn debug_output_redacts_secrets() {
        let body = r#"{"templateID":"base","envVars":{"K":"hidden"},"mcp":{"k":"hidden"}}"#;
        let new: NewSandbox = serde_json::from_str(body).expect("a body");
        assert!(!format!("{new:?}").contains("hidden"));
    }
}
