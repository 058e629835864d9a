//! The contract between the server and the guest it starts: what the guest inherits, and the control routes that only
//! the host may call.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The inherited listening unix socket that serves the host.
pub const LISTENER_FD: i32 = 3;
/// The inherited descriptor that holds the JSON of a [`GuestConfig`] up to its end.
pub const CONFIG_FD: i32 = 4;
/// The port of envd: what the edge routes to the guest, and where the guest also listens inside the sandbox.
pub const ENVD_PORT: u16 = 49983;
/// The envd version whose behaviour the guest shows; clients enable features by it.
pub const ENVD_VERSION: &str = "0.6.13";
/// Every control route but [`INIT_PATH`] lies below this prefix.
pub const CONTROL_PREFIX: &str = "/sandbar/";
/// `POST` of an [`crate::envd::Init`].
pub const INIT_PATH: &str = "/init";
/// `PUT` of a [`Lease`], answered 204.
pub const LEASE_PATH: &str = "/sandbar/lease";
/// `GET` with `after=SEQ`, answered with a list of [`LogEntry`].
pub const LOG_PATH: &str = "/sandbar/log";

/// A variable of a process to be started: what is sent to its standard input comes in this encoding, and the guest takes it off.
/// The process then does not see the variable, by which it knows; where it does see it, the input arrives as it was sent.
pub const STDIN_ENCODING: &str = "SANDBAR_STDIN_ENCODING";
/// The one encoding there is: gzip, also several pieces of it one after the other.
pub const STDIN_GZIP: &str = "gzip";

/// The port where E2B's packages expect the code interpreter.
pub const INTERPRETER_PORT: u16 = 49999;
/// Where the guest has it: the edge leads requests for the port here, unless somebody listens there.
pub const INTERPRETER_PREFIX: &str = "/sandbar/interpreter";

/// What the guest is told when it starts.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestConfig {
    pub sandbox_id: String,
    pub template_id: String,
    /// Absent: the guest is open to whoever reaches it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    /// Variables the user gave at create.
    #[serde(default)]
    pub env_vars: BTreeMap<String, String>,
    /// Variables of the platform; `env_vars` cannot override them.
    #[serde(default)]
    pub system_env: BTreeMap<String, String>,
    pub default_user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// The guest ends itself some time after this moment unless the lease is renewed. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ends_unix_ms: Option<u64>,
    /// As in [`Lease`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_grace_seconds: Option<u32>,
    /// The limits of the sandbox, shown by `/metrics`.
    pub memory_limit_bytes: u64,
    pub cpu_count: u32,
    pub disk_limit_bytes: u64,
}

/// The token and the values of variables are secrets.
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

/// Until when the sandbox may live; `None` is for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub ends_unix_ms: Option<u64>,
    /// How long the guest waits after that for a server before it ends itself: short where the
    /// server would kill the sandbox, long where it would pause it, since the memory goes with the
    /// guest. Absent: [`LEASE_GRACE_SECONDS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u32>,
}

/// The server normally acts first; this is for when there is none.
pub const LEASE_GRACE_SECONDS: u32 = 30;

/// One line of the guest's own record of what happened in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogEntry {
    /// Grows by one; a gap means that older entries were overwritten.
    pub seq: u64,
    pub unix_ms: u64,
    pub level: LogLevel,
    pub message: String,
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    fn debug_output_names_no_secret() {
        let config = GuestConfig {
            access_token: Some("tokensecret".into()),
            env_vars: BTreeMap::from([("KEY".into(), "valuesecret".into())]),
            system_env: BTreeMap::from([("SYS".into(), "systemsecret".into())]),
            ..GuestConfig::default()
        };
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn the_wire_form_is_camel_case() {
        let text = serde_json::to_string(&GuestConfig { lease_ends_unix_ms: Some(5), ..GuestConfig::default() });
        assert!(text.expect("a config is JSON").contains(r#""leaseEndsUnixMs":5"#));
        let lease: Lease = serde_json::from_str(r#"{"endsUnixMs":null}"#).expect("a lease");
        assert_eq!(lease.ends_unix_ms, None);
    }
}
