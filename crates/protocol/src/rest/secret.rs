//! Bodies of the secret calls. The server never returns a value.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::null_is_empty;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewSecret {
    /// What rules name it by.
    pub name: String,
    /// The value; no call returns it.
    pub value: String,
    /// Names and values to find it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

impl fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A new value; given metadata replaces the stored metadata.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SecretUpdate {
    /// The new value.
    pub value: String,
    /// The new metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
}

impl fmt::Debug for SecretUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretUpdate").finish_non_exhaustive()
    }
}

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SecretInfo {
    /// Its id.
    #[serde(rename = "secretID")]
    pub secret_id: String,
    /// What rules name it by.
    pub name: String,
    /// Counts the values.
    pub current_version: u64,
    /// As given.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: String,
    /// When its value changed last.
    pub updated_at: String,
}
