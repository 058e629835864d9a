//! Metrics and logs of sandboxes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::null_is_empty;
use crate::guest::LogLevel;

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
