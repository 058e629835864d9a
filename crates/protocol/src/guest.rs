//! The contract between the server and the guest it starts: inherited descriptors, and the control
//! routes that only the host may call.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The inherited listening unix socket that serves the host.
pub const LISTENER_FD: i32 = 3;
/// The inherited descriptor from which the guest reads the JSON of a [`GuestConfig`] until EOF.
pub const CONFIG_FD: i32 = 4;
/// The envd port: the edge routes it to the guest, and the guest also listens on it inside the
/// sandbox.
pub const ENVD_PORT: u16 = 49983;
/// The envd version whose behaviour the guest implements; clients enable features by it.
pub const ENVD_VERSION: &str = "0.6.13";
/// Prefix of every control route except [`INIT_PATH`].
pub const CONTROL_PREFIX: &str = "/sandbar/";
/// `POST` of an [`crate::envd::Init`].
pub const INIT_PATH: &str = "/init";
/// `PUT` of a [`Lease`], answered with 204.
pub const LEASE_PATH: &str = "/sandbar/lease";
/// `GET` with `after=SEQ`, answered with a list of [`LogEntry`].
pub const LOG_PATH: &str = "/sandbar/log";

/// Environment variable of a process to start: names the encoding of its standard input, which the
/// guest decodes. A guest that decodes removes the variable, so a process that still sees it
/// receives the input undecoded.
pub const STDIN_ENCODING: &str = "SANDBAR_STDIN_ENCODING";
/// The only supported encoding: gzip, also several concatenated members.
pub const STDIN_GZIP: &str = "gzip";

/// The port on which E2B's packages expect the code interpreter.
pub const INTERPRETER_PORT: u16 = 49999;
/// Route of the guest's interpreter: the edge forwards the port here unless a process in the
/// sandbox listens on it.
pub const INTERPRETER_PREFIX: &str = "/sandbar/interpreter";

/// The guest's startup configuration.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestConfig {
    pub sandbox_id: String,
    pub template_id: String,
    /// Absent: the guest accepts every request that reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// Variables the user passed at create.
    #[serde(default)]
    pub env_vars: BTreeMap<String, String>,
    /// Variables of the platform; `env_vars` cannot override them.
    #[serde(default)]
    pub system_env: BTreeMap<String, String>,
    pub default_user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// The guest exits some time after this moment unless the lease is renewed. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ends_unix_ms: Option<u64>,
    /// See [`Lease::grace_seconds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_grace_seconds: Option<u32>,
    /// The limits of the sandbox, reported by `/metrics`.
    pub memory_limit_bytes: u64,
    pub cpu_count: u32,
    pub disk_limit_bytes: u64,
}

/// Redacts the token and the values of variables.
impl fmt::Debug for GuestConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestConfig")
            .field("sandbox_id", &self.sandbox_id)
            .field("template_id", &self.template_id)
            .field("default_user", &self.default_user)
            .field("default_workdir", &self.default_workdir)
            .field("lease_ends_unix_ms", &self.lease_ends_unix_ms)
            .field("memory_limit_bytes", &self.memory_limit_bytes)
            .field("cpu_count", &self.cpu_count)
            .field("disk_limit_bytes", &self.disk_limit_bytes)
            .finish_non_exhaustive()
    }
}

/// Until when the sandbox may live; `None` means without limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub ends_unix_ms: Option<u64>,
    /// How long the guest waits for a server after the lease ends before it exits: short where the
    /// server would kill the sandbox, long where it would pause it, because the memory is lost with
    /// the guest. Absent: [`LEASE_GRACE_SECONDS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
}

/// Default grace. The server normally acts first; the guest acts only when no server runs.
pub const LEASE_GRACE_SECONDS: u32 = 30;

/// One entry of the guest's event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogEntry {
    /// Increases by one; a gap means that older entries were overwritten.
    pub seq: u64,
    pub unix_ms: u64,
    pub level: LogLevel,
    pub message: String,
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_redacts_secrets() {
        let config = GuestConfig {
            access_token: Some("tokensecret".into()),
            env_vars: BTreeMap::from([("KEY".into(), "valuesecret".into())]),
            system_env: BTreeMap::from([("SYS".into(), "systemsecret".into())]),
            ..GuestConfig::default()
        };
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn fields_are_camel_case_on_the_wire() {
        let text = serde_json::to_string(&GuestConfig { lease_ends_unix_ms: Some(5), ..GuestConfig::default() });
        assert!(text.expect("a config is JSON").contains(r#""leaseEndsUnixMs":5"#));
        let lease: Lease = serde_json::from_str(r#"{"endsUnixMs":null}"#).expect("a lease");
        assert_eq!(lease.ends_unix_ms, None);
    }
}
