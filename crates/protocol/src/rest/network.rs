//! Network rules of a sandbox.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
