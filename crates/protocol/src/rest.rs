//! Bodies of the E2B control plane. Field names are the wire's, including its mixed cases; unknown
//! fields are ignored.
//!
//! Times are RFC 3339 strings: the sender chooses the precision, and the same time must always be
//! sent as the same string.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

mod error;
mod life;
mod network;
mod observation;
pub mod secret;
mod server;
pub mod template;
pub mod volume;

pub use crate::guest::LogLevel;
pub use error::{ErrorBody, SANDBOX_FILES_MISSING, TEMPLATE_FILES_MISSING, VOLUME_FILES_MISSING};
pub use life::{Connect, Fork, ForkResult, NewSnapshot, Pause, Refresh, Resume, Snapshot, Timeout};
pub use network::{Network, NetworkUpdate};
pub use observation::{SandboxLog, SandboxLogEntry, SandboxLogPage, SandboxLogs, SandboxMetric, SandboxesMetrics};
pub use server::{Capabilities, PartState, Readiness, Recoverable, Recovered, SetAsideRow};

/// Servers written in Go send `null` for an empty list or map.
fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
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
