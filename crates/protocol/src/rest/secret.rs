//! Bodies of the secret calls. The server never returns a value.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::null_is_empty;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSecret {
    pub name: String,
    pub value: String,
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
pub struct SecretUpdate {
    pub value: String,
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
#[serde(rename_all = "camelCase")]
pub struct SecretInfo {
    #[serde(rename = "secretID")]
    pub secret_id: String,
    pub name: String,
    pub current_version: u64,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub metadata: BTreeMap<String, String>,
    pub created_at: String,
    pub updated_at: String,
}
