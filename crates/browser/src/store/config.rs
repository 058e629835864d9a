//! Configuration of the store.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where screenshots are stored, and how URLs point to them.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub place: StoreLocation,
    /// A domain (`cdn.example.com`) or URL prefix (`https://example.com/media`) that publishes the
    /// store.
    pub cdn: Option<String>,
}

/// Where screenshots are kept.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StoreLocation {
    Disk {
        /// A directory. Sandbar removes nothing from a directory that is named here.
        directory: PathBuf,
        /// Beginning of the URL at which another server publishes the directory; none: the running
        /// Sandbar server signs and serves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        served_at: Option<String>,
    },
    S3(S3Config),
}

/// A bucket of AWS, or of a service with the same API.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// A bucket. URLs are signed for seven days unless `screenshots.cdn` is set.
    pub bucket: String,
    /// Its region.
    #[serde(default = "S3Config::default_region")]
    pub region: String,
    /// URL of another service than AWS with S3's protocol. `http://` sends everything unencrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "AWS"))]
    pub endpoint: Option<String>,
    /// Never part of a configuration file. Without them the machine's instance role is used.
    #[serde(skip)]
    pub credentials: Option<Credentials>,
}

/// Access key of a bucket.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: Secret,
}

impl S3Config {
    fn default_region() -> String {
        "us-east-1".to_owned()
    }
}

/// A text that `Debug` does not show.
#[derive(Clone)]
pub struct Secret(pub(super) String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
