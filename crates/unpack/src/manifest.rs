//! Indexes and manifests, as registries and OCI layouts have them.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::architecture;
use crate::error::ImageError;

/// Indexes within indexes that are looked into.
pub const DEEPEST: usize = 3;
/// Layers of an image; Docker and the kernel's overlays end at 128.
pub(crate) const MOST_LAYERS: usize = 250;

#[derive(Deserialize)]
pub struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
pub struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// What names content: its digest is what counts, its size is what it claims.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub digest: String,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    pub size: u64,
    platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

impl Index {
    /// The descriptor of the manifest, or of the index, for this machine.
    pub fn fitting(&self) -> Result<&Descriptor, ImageError> {
        let fits = |descriptor: &&Descriptor| {
            let platform = descriptor.platform.as_ref();
            platform.is_none_or(|platform| platform.os == "linux" && platform.architecture == architecture())
        };
        let found = self.manifests.iter().find(fits);
        found.ok_or_else(|| ImageError::Malformed("it has nothing for this machine".to_owned()))
    }
}

impl Descriptor {
    pub fn is_index(&self) -> bool {
        is_index(&self.media_type)
    }

    /// The hexadecimal digits of the digest, which become part of URLs.
    ///
    /// # Errors
    /// [`ImageError::Malformed`] if it is no SHA-256 digest.
    pub fn digits(&self) -> Result<&str, ImageError> {
        digits(&self.digest)
    }
}

pub(crate) fn digits(digest: &str) -> Result<&str, ImageError> {
    let digits = digest
        .strip_prefix("sha256:")
        .filter(|digits| digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    let shown = || digest.escape_debug().take(100).collect::<String>();
    digits.ok_or_else(|| ImageError::Malformed(format!("'{}' is no SHA-256 digest", shown())))
}

pub fn is_index(media_type: &str) -> bool {
    media_type.contains("index") || media_type.contains("manifest.list")
}

pub fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::Malformed(format!("{name}: {error}")))
}
