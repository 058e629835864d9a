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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The HTTP status.
    pub code: u16,
    /// What failed, and what to do next.
    pub message: String,
    /// For programs, where the status alone is ambiguous.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Readiness {
    /// Every part accepts changes.
    pub ready: bool,
    /// By name.
    pub parts: BTreeMap<String, PartState>,
    /// Database rows that this version cannot parse; only callers with the API key receive them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "setAside")]
    pub set_aside: Vec<SetAsideRow>,
}

/// A row that stays in the database unparsed, together with the files it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SetAsideRow {
    /// The table of the row.
    pub table: String,
    /// The id of the row.
    pub id: String,
    /// Why it cannot be parsed.
    pub cause: String,
}

/// One component of the server. Only callers with the API key receive the fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartState {
    /// The part accepts changes.
    pub ok: bool,
    /// The file or directory with the fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// When it failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The create body of API versions 1 and 2. The endpoint chooses the defaults of absent fields.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NewSandbox {
    /// Required: the id or name of a template or snapshot, or `NAME:TAG`.
    #[serde(rename = "templateID")]
    pub template_id: Option<String>,
    /// Seconds until the sandbox times out; absent: 15 by version 1, 300 by version 2.
    pub timeout: Option<i64>,
    /// Pause at the timeout instead of killing.
    pub auto_pause: Option<bool>,
    /// `false`: a pause at the timeout keeps the files only.
    pub auto_pause_memory: Option<bool>,
    /// Whether a request to an open port resumes the paused sandbox.
    pub auto_resume: Option<AutoResume>,
    /// `false` in version 1: the sandbox's daemon takes requests without a token.
    pub secure: Option<bool>,
    /// `false`: nothing outside can be reached.
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    /// What may be reached, and from where the sandbox may be reached.
    pub network: Option<Network>,
    /// Names and values to find the sandbox by.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Variables of every command.
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Settings of MCP servers, recorded for the template's own gateway.
    pub mcp: Option<Value>,
    /// Refused with 501 unless it is empty: identities of E2B's cloud.
    pub iam: Option<Value>,
    /// Volumes to mount.
    pub volume_mounts: Option<Vec<VolumeMount>>,
    /// Sandbar extension: processors.
    pub cpu_count: Option<i64>,
    /// Sandbar extension: MiB of memory.
    #[serde(rename = "memoryMB")]
    pub memory_mb: Option<i64>,
    /// Sandbar extension: MiB of disk.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AutoResume {
    /// A request to an open port resumes the sandbox.
    pub enabled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VolumeMount {
    /// The name of the volume.
    pub name: String,
    /// The absolute path in the sandbox.
    pub path: String,
}

/// Ingress and egress rules of a sandbox.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// `false`: requests to ports need the traffic token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// Addresses, ranges, names and `*.domains` that may be reached, also where `denyOut` covers
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Addresses and ranges that may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// The older form: allows these networks and denies all others. Never in responses.
    #[serde(rename = "egressCIDRs", skip_serializing_if = "Option::is_none")]
    pub egress_cidrs: Option<Vec<String>>,
    /// A proxy for outgoing connections: `address`, `username`, `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
    /// The `Host` that services inside receive; `${PORT}` stands for the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// By domain: headers to set (`transform`), and how (`inspect`, `allowPlaintext`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<Value>>>,
    /// Name servers of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    /// Ports whose services speak https.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The template that it was made from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Always the same on a Sandbar server.
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    /// The version of the daemon inside.
    pub envd_version: String,
    /// The template's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The token of the daemon inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// The token of its ports, where they are private.
    #[serde(default)]
    pub traffic_access_token: Option<String>,
    /// What is appended to `PORT-SANDBOX.`.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SandboxState {
    Running,
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Processes and memory, frozen, and the files.
    Full,
    /// Only the files; a resume boots again.
    Filesystem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    Kill,
    Pause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// A request to an open port resumes the paused sandbox.
    pub auto_resume: bool,
    /// What happens at the timeout.
    pub on_timeout: OnTimeout,
}

/// One row of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListedSandbox {
    /// The template that it was made from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The template's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// Always the same on a Sandbar server.
    #[serde(rename = "clientID", default)]
    pub client_id: String,
    /// When it was created or resumed.
    pub started_at: String,
    /// When it times out.
    pub end_at: String,
    /// The version of the daemon inside.
    pub envd_version: String,
    /// Processors.
    pub cpu_count: u32,
    /// MiB of memory.
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    /// MiB of disk.
    #[serde(rename = "diskSizeMB", default)]
    pub disk_size_mb: u32,
    /// Whether it runs.
    pub state: SandboxState,
    /// As given to create.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// As given to create.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// What a paused sandbox has kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
}

/// All details of one sandbox.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    #[serde(flatten)]
    pub listed: ListedSandbox,
    /// The token of the daemon inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<String>,
    /// As given to create.
    #[serde(default)]
    pub allow_internet_access: Option<bool>,
    /// What is appended to `PORT-SANDBOX.`.
    #[serde(default)]
    pub domain: Option<String>,
    /// The rules in effect.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Connect {
    /// Seconds until the sandbox times out; never shortens a running one. Absent: 300 by version 2;
    /// version 1 needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// `false`: boot from the files instead of resuming the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Resume {
    /// Seconds until the sandbox times out; absent: 15.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Pause at the timeout instead of killing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// `false`: boot from the files instead of resuming the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Pause {
    /// `false`: keep the files only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// Fail if the daemon inside does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Timeout {
    /// Seconds from now; 0 ends the timeout at once.
    pub timeout: i64,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Refresh {
    /// Seconds from now, at most 3600; fewer than 15 count as 15.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
}

/// `PUT /sandboxes/{id}/network`: replaces the egress rules. Absent fields are cleared.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkUpdate {
    /// Addresses, ranges, names and `*.domains` that may be reached, also where `denyOut` covers
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// Addresses and ranges that may not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// Name servers of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns_servers: Option<Vec<String>>,
    /// A proxy for outgoing connections: `address`, `username`, `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<Value>,
    /// By domain: headers to set (`transform`), and how (`inspect`, `allowPlaintext`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<Value>>>,
    /// `false`: nothing outside can be reached.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Fork {
    /// Seconds until the copies time out; absent: 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// How many copies, at most 100; absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// One child of a fork: exactly one of the two fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ForkResult {
    /// The copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// `GET /sandbar/trash`, one row: files that no record names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Recoverable {
    /// The name of the files; `recover` takes it.
    #[serde(rename = "filesID")]
    pub files_id: String,
    /// `sandbox`, `template`, `volume` or `unknown`.
    pub kind: String,
    /// The id of the sandbox, template or volume.
    pub id: Option<String>,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// As given to create.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Absent for a volume, which is not moved to the trash.
    pub trashed_at: Option<String>,
    /// When the trash deletes it.
    pub deleted_at: Option<String>,
    /// What it takes on the disk.
    pub bytes: Option<u64>,
}

/// `POST /sandbar/trash/{id}`: the recovered object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Recovered {
    /// `sandbox`, `template` or `volume`.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Its name, if it has one.
    pub name: Option<String>,
}

/// `POST /sandboxes/{id}/snapshots`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NewSnapshot {
    /// A name that create takes, with or without a tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Has no effect: a snapshot has the files only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// A saved state that sandboxes can be created from: its id is a template reference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// What create takes as `templateID`.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Its names.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub names: Vec<String>,
}

/// One sample; sizes in bytes. The Python client requires every field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxesMetrics {
    /// By id.
    pub sandboxes: BTreeMap<String, SandboxMetric>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxLog {
    /// When.
    pub timestamp: String,
    /// The entry as one line of JSON.
    pub line: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxLogEntry {
    /// When.
    pub timestamp: String,
    /// What happened.
    pub message: String,
    /// How important it is.
    pub level: LogLevel,
    /// Details by name.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// `GET /sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxLogs {
    /// As lines.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub logs: Vec<SandboxLog>,
    /// The same by fields.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub log_entries: Vec<SandboxLogEntry>,
}

/// `GET /v2/sandboxes/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxLogPage {
    /// The entries.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub logs: Vec<SandboxLogEntry>,
}

/// `GET /sandbar/capabilities`: the server's extensions to E2B, by name, each with its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// `sandbar`.
    pub server: String,
    /// Random, and the same at every address of the server. Older servers do not send it.
    #[serde(default, rename = "serverID", skip_serializing_if = "Option::is_none")]
    pub server_id: Option<String>,
    /// The version of the server.
    pub version: String,
    /// By name, each with its bounds.
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
