//! Pulls images from a registry.

mod challenge;
mod client;
mod reach;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use oci_client::Reference;
use reqwest::Url;
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;
use unpack::{
    DEEPEST, Descriptor, ImageConfig, ImageError, Index, Layer, Manifest, Unpacked, digest, is_index, parse, written,
};

use self::client::{Client, Failure, chain};
pub use self::reach::IsPublic;
use self::reach::{Reach, host_and_port};
use crate::unpacker::{self, Target};

/// Read timeout of a registry.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a layer besides that for its size: connecting, and a registry that reads it from a slow
/// disk.
const LAYER_GRACE: Duration = Duration::from_secs(5 * 60);
/// Lowest average rate of a layer, in bytes per second: a slow registry would block the builds of
/// other users.
const LEAST_RATE: u64 = 64 << 10;

/// A user of a registry.
#[derive(Clone)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Replacements of registries: `docker.io` → `mirror.example:5000`. A mirror that starts with
/// `http://` is used without TLS; so is loopback, unless the mirror starts with `https://`. A
/// registry can be its own mirror: the hosts that are named here may have private addresses.
#[derive(Debug, Clone, Default)]
pub struct Mirrors(pub BTreeMap<String, String>);

impl Mirrors {
    /// The host to use for images of `registry`, and whether without TLS.
    fn resolve(&self, registry: &str) -> (String, bool) {
        // The name of Docker's registry in image names, and the host of its server.
        let names = match registry {
            "docker.io" | "index.docker.io" => &["docker.io", "index.docker.io"][..],
            _ => &[registry],
        };
        let mirror = names.iter().find_map(|name| self.0.get(*name)).map_or(registry, String::as_str);
        let (host, is_plain) = place(mirror);
        (if host == "docker.io" { "index.docker.io".to_owned() } else { host }, is_plain)
    }

    /// Hosts and ports of all mirrors.
    fn named(&self) -> BTreeSet<(String, u16)> {
        let urls = self.0.values().filter_map(|mirror| {
            let (host, is_plain) = place(mirror);
            url(&host, is_plain).ok()
        });
        urls.filter_map(|url| host_and_port(&url)).collect()
    }
}

/// Host and port of a mirror, and whether it is used without TLS.
fn place(mirror: &str) -> (String, bool) {
    let (is_plain, host) = match mirror.split_once("://") {
        Some((scheme, host)) => (scheme == "http", host),
        None => (is_loopback(mirror), mirror),
    };
    (host.trim_end_matches('/').to_owned(), is_plain)
}

fn url(host: &str, is_plain: bool) -> Result<Url, ImageError> {
    let scheme = if is_plain { "http" } else { "https" };
    format!("{scheme}://{host}").parse().map_err(|_| ImageError::Name(host.to_owned()))
}

/// Compares the whole name: a name that only starts so belongs to another host, which would receive
/// the password.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An image in a registry; only its description has been fetched.
pub struct RegistryImage {
    client: Client,
    name: String,
    config: ImageConfig,
    layers: Vec<Descriptor>,
}

impl RegistryImage {
    /// Fetches the description of `name`, such as `python:3.12` or `localhost:5000/a/b@sha256:…`. A
    /// registry that `mirrors` do not name must have an address that `is_public`.
    pub async fn find(
        name: &str,
        credentials: Option<&Credentials>,
        mirrors: &Mirrors,
        is_public: IsPublic,
    ) -> Result<Self, ImageError> {
        let asked: Reference = name.trim().parse().map_err(|_| ImageError::Name(name.to_owned()))?;
        let (registry, is_plain) = mirrors.resolve(asked.registry());
        let reach = Reach::new(mirrors.named(), is_public);
        let failed = |failure| refused(name, failure);
        let mut client =
            Client::new(url(&registry, is_plain)?, asked.repository().to_owned(), reach).map_err(failed)?;
        client.authorize(credentials).await.map_err(failed)?;
        let manifest = find_manifest(&client, &asked, name).await?;
        let layers = manifest.layers;
        let digits = manifest.config.digits()?;
        let config = client.small_blob(digits).await.map_err(failed)?;
        let config = ImageConfig::parse(&config)?;
        if config.digest != manifest.config.digest {
            let (expected, found) = (manifest.config.digest, config.digest);
            return Err(ImageError::Digest { what: "the configuration".to_owned(), expected, found });
        }
        config.check_layers(layers.len())?;
        Ok(Self { client, name: name.to_owned(), config, layers })
    }

    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// Digest of the digests of all layers as they are downloaded.
    /// [`RegistryImage::download`] checks them.
    pub fn layers_digest(&self) -> String {
        let mut hash = Sha256::new();
        for layer in &self.layers {
            hash.update(format!("{}\n", layer.digest));
        }
        written(&hash.finalize())
    }

    /// The compressed size of all layers.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// Downloads the layers into the empty directory `place` and checks their digests.
    pub async fn download(&self, place: &Path, most: u64, tell: &(dyn Fn(String) + Sync)) -> Result<(), ImageError> {
        if self.bytes() > most {
            return Err(ImageError::TooLarge(most));
        }
        for (number, layer) in self.layers.iter().enumerate() {
            tell(format!("pulling layer {} of {}, {:.1} MB", number + 1, self.layers.len(), layer.size as f64 / 1e6));
            let deadline = LAYER_GRACE + Duration::from_secs(layer.size / LEAST_RATE);
            let fetched = tokio::time::timeout(deadline, self.fetch(layer, &place.join(number.to_string()))).await;
            fetched.map_err(|_| self.failed("the registry is too slow".to_owned()))??;
        }
        Ok(())
    }

    fn failed(&self, cause: String) -> ImageError {
        ImageError::Registry { image: self.name.clone(), cause }
    }

    async fn fetch(&self, layer: &Descriptor, target: &Path) -> Result<(), ImageError> {
        let keep = || ImageError::io("keep a layer");
        let mut answer = self.client.blob(layer.digits()?).await.map_err(|failure| refused(&self.name, failure))?;
        let mut file = File::create_new(target).await.map_err(keep())?;
        let (mut hash, mut received) = (Sha256::new(), 0);
        while let Some(piece) = answer.chunk().await.map_err(|error| self.failed(chain(&error.without_url())))? {
            received += piece.len() as u64;
            if received > layer.size {
                return Err(self.failed("a layer is larger than announced".to_owned()));
            }
            hash.update(&piece);
            file.write_all(&piece).await.map_err(keep())?;
        }
        file.flush().await.map_err(keep())?;
        let found = written(&hash.finalize());
        if found != layer.digest {
            return Err(ImageError::Digest { what: "a layer".to_owned(), expected: layer.digest.clone(), found });
        }
        Ok(())
    }

    /// Unpacks what [`RegistryImage::download`] put into `place`, and removes it from there.
    /// Blocks.
    ///
    /// # Errors
    /// As [`crate::ArchiveImage::unpack`].
    pub fn unpack(&self, place: &Path, target: &Target<'_>) -> Result<Unpacked, ImageError> {
        let (mut layers, mut files) = (Vec::new(), Vec::new());
        for (number, diff_id) in self.config.diff_ids.iter().enumerate() {
            let path = place.join(number.to_string());
            files.push(std::fs::File::open(&path).map_err(ImageError::io(format!("open layer {}", number + 1)))?);
            // Its space is freed as soon as the unpacker has closed it: layers and content at once
            // would take the space twice.
            std::fs::remove_file(&path).map_err(ImageError::io(format!("remove layer {}", number + 1)))?;
            layers.push(Layer { file: number, place: None, diff_id: Some(diff_id.clone()) });
        }
        unpacker::unpack(layers, files, target)
    }
}

/// The manifest for this machine that the name refers to.
async fn find_manifest(client: &Client, asked: &Reference, name: &str) -> Result<Manifest, ImageError> {
    let mut expected = asked.digest().map(str::to_owned);
    let mut reference = expected.clone().unwrap_or_else(|| asked.tag().unwrap_or("latest").to_owned());
    for _ in 0..DEEPEST {
        let (bytes, kind) = client.manifest(&reference).await.map_err(|failure| refused(name, failure))?;
        if let Some(expected) = expected.filter(|expected| *expected != digest(&bytes)) {
            return Err(ImageError::Digest { what: "the manifest".to_owned(), expected, found: digest(&bytes) });
        }
        let document: Kind = parse("the manifest", &bytes)?;
        if !is_index(document.media_type.as_deref().unwrap_or(&kind)) {
            return parse("the manifest", &bytes);
        }
        let index: Index = parse("an index", &bytes)?;
        let next = index.fitting()?;
        reference = format!("sha256:{}", next.digits()?);
        expected = Some(reference.clone());
    }
    Err(ImageError::Malformed("its indexes lead to no manifest".to_owned()))
}

/// The media type in a document.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    media_type: Option<String>,
}

fn refused(name: &str, failure: Failure) -> ImageError {
    let cause = match failure {
        Failure::Absent => "it does not exist there".to_owned(),
        Failure::Denied => "the registry wants other credentials, or it does not exist".to_owned(),
        Failure::Other(cause) => cause,
    };
    ImageError::Registry { image: name.to_owned(), cause }
}
