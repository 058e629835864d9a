//! What an image says about itself.

use std::collections::BTreeMap;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::error::ImageError;

/// Larger ones are no honest image's.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// The part of an image's configuration that a sandbox has a use for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageConfig {
    /// Of the configuration itself, which names the content of every layer: the same digest is the same image.
    pub digest: String,
    pub env: BTreeMap<String, String>,
    /// Of the layers' content, uncompressed, lowest first.
    pub(crate) diff_ids: Vec<String>,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<WireConfig>,
    rootfs: WireRootfs,
}

#[derive(Deserialize, Default)]
struct WireConfig {
    #[serde(rename = "Env", default)]
    env: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct WireRootfs {
    diff_ids: Vec<String>,
}

/// As images name what this machine runs.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl ImageConfig {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
        let wire: Wire = serde_json::from_slice(bytes).map_err(|error| ImageError::Malformed(error.to_string()))?;
        let (found, wanted) = (format!("{}/{}", wire.os, wire.architecture), format!("linux/{}", architecture()));
        if !wire.architecture.is_empty() && found != wanted {
            return Err(ImageError::Platform { found, wanted });
        }
        let pairs = wire.config.unwrap_or_default().env.unwrap_or_default();
        let env = pairs.iter().filter_map(|pair| pair.split_once('='));
        let env = env.filter(|(name, _)| !name.is_empty()).map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self { digest: digest(bytes), env: env.collect(), diff_ids: wire.rootfs.diff_ids })
    }
}

/// In the form `sha256:…`.
pub(crate) fn digest(bytes: &[u8]) -> String {
    written(&Sha256::digest(bytes))
}

pub(crate) fn written(hash: &[u8]) -> String {
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}
