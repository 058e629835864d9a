//! What an image says about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::ImageError;
use crate::manifest::{MOST_LAYERS, digits};

/// Larger ones are no honest image's.
pub const MOST_BYTES: u64 = 4 << 20;

/// The part of an image's configuration that a sandbox has a use for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Of the configuration itself, which names the content of every layer: the same digest is the
    /// same image.
    pub digest: String,
    pub env: BTreeMap<String, String>,
    /// Of the layers' content, uncompressed, lowest first.
    pub diff_ids: Vec<String>,
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
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl ImageConfig {
    /// Reads a configuration of at most [`MOST_BYTES`].
    ///
    /// # Errors
    /// [`ImageError::Malformed`] if it is none, [`ImageError::Platform`] if it is another
    /// machine's.
    pub fn parse(bytes: &[u8]) -> Result<Self, ImageError> {
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

    /// Checks the digest of a configuration that another process read.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] if it is none.
    pub fn check(&self) -> Result<(), ImageError> {
        digits(&self.digest).map(drop)
    }

    /// Checks that the configuration names the content of `count` layers, by digests.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] if it does not, or if there are more than any image has.
    pub fn check_layers(&self, count: usize) -> Result<(), ImageError> {
        if count > MOST_LAYERS {
            return Err(ImageError::Malformed(format!("it has {count} layers")));
        }
        if count != self.diff_ids.len() {
            return Err(ImageError::Malformed("the configuration and the layers do not belong together".to_owned()));
        }
        self.diff_ids.iter().try_for_each(|digest| digits(digest).map(drop))
    }
}

/// In the form `sha256:…`.
pub fn digest(bytes: &[u8]) -> String {
    written(&Sha256::digest(bytes))
}

/// A hash in the form `sha256:…`.
pub fn written(hash: &[u8]) -> String {
    format!("sha256:{}", hex::encode(hash))
}
