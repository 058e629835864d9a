//! The server itself: its extensions to E2B, whether it accepts changes, and what it can recover.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
