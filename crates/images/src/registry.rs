//! Images of a registry.

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

use self::client::{Client, Failure, chain};
pub use self::reach::IsPublic;
use self::reach::{Reach, host_and_port};
use crate::config::{ImageConfig, digest, written};
use crate::error::ImageError;
use crate::layer;
use crate::manifest::{DEEPEST, Descriptor, Index, MOST_LAYERS, Manifest, is_index, parse};
use crate::unpack::{Limits, Owners, Tree, Unpacked};

/// Longest silence of a registry.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// What a layer may take besides the time for its size: connecting, and a registry that reads it from a slow disk.
const LAYER_GRACE: Duration = Duration::from_secs(5 * 60);
/// The least bytes a second of a layer, over all of it: a registry that drips keeps a build's turn from others.
const LEAST_RATE: u64 = 64 << 10;

/// Who asks.
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

/// Where images are asked for instead of at their registry: `docker.io` → `mirror.example:5000`. A mirror that begins with `http://` is spoken
/// to without TLS; so is loopback, unless the mirror begins with `https://`. A registry that stands for itself is named all the
/// same: the ones that are named may have private addresses.
#[derive(Debug, Clone, Default)]
pub struct Mirrors(pub BTreeMap<String, String>);

impl Mirrors {
    /// The registry to ask for what is at `registry`, and whether without TLS.
    fn of(&self, registry: &str) -> (String, bool) {
        // As images name Docker's own, and as its server is called.
        let names = match registry {
            "docker.io" | "index.docker.io" => &["docker.io", "index.docker.io"][..],
            _ => &[registry],
        };
        let mirror = names.iter().find_map(|name| self.0.get(*name)).map_or(registry, String::as_str);
        let (host, is_plain) = place(mirror);
        (if host == "docker.io" { "index.docker.io".to_owned() } else { host }, is_plain)
    }

    /// Hosts and ports that the configuration names.
    fn named(&self) -> BTreeSet<(String, u16)> {
        let urls = self.0.values().filter_map(|mirror| {
            let (host, is_plain) = place(mirror);
            url(&host, is_plain).ok()
        });
        urls.filter_map(|url| host_and_port(&url)).collect()
    }
}

/// Host and port of a mirror as it is written, and whether it is spoken to without TLS.
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

/// By the whole name: one that merely begins so is somebody else's, who would be told the password.
fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An image that a registry has; nothing of it is here yet but its description.
pub struct RegistryImage {
    client: Client,
    name: String,
    config: ImageConfig,
    layers: Vec<Descriptor>,
}

impl RegistryImage {
    /// Asks the registry for `name`, such as `python:3.12` or `localhost:5000/a/b@sha256:…`. One that `mirrors` do not name must
    /// have an address that `is_public`.
    pub async fn find(
        name: &str,
        credentials: Option<&Credentials>,
        mirrors: &Mirrors,
        is_public: IsPublic,
    ) -> Result<Self, ImageError> {
        let asked: Reference = name.trim().parse().map_err(|_| ImageError::Name(name.to_owned()))?;
        let (registry, is_plain) = mirrors.of(asked.registry());
        let reach = Reach::new(mirrors.named(), is_public);
        let failed = |failure| refused(name, failure);
        let mut client =
            Client::new(url(&registry, is_plain)?, asked.repository().to_owned(), reach).map_err(failed)?;
        client.authorize(credentials).await.map_err(failed)?;
        let manifest = find_manifest(&client, &asked, name).await?;
        let layers = manifest.layers;
        if layers.len() > MOST_LAYERS {
            return Err(ImageError::Malformed(format!("it has {} layers", layers.len())));
        }
        let digits = manifest.config.digits()?;
        let config = client.small_blob(digits).await.map_err(failed)?;
        let config = ImageConfig::parse(&config)?;
        if config.digest != manifest.config.digest {
            let (expected, found) = (manifest.config.digest, config.digest);
            return Err(ImageError::Digest { what: "the configuration".to_owned(), expected, found });
        }
        if config.diff_ids.len() != layers.len() {
            return Err(ImageError::Malformed("the configuration and the layers do not belong together".to_owned()));
        }
        Ok(Self { client, name: name.to_owned(), config, layers })
    }

    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// What all layers together take, compressed.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// Brings the layers into the empty directory `place`, each checked by its digest.
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

    /// Unpacks what [`RegistryImage::download`] brought into the empty directory `root`. Blocks.
    pub fn unpack(&self, place: &Path, root: &Path, owners: Owners, limits: Limits) -> Result<Unpacked, ImageError> {
        let mut tree = Tree::open(root, owners, limits)?;
        for (number, diff_id) in self.config.diff_ids.iter().enumerate() {
            let name = format!("layer {} of {}", number + 1, self.layers.len());
            let path = place.join(number.to_string());
            let file = std::fs::File::open(&path).map_err(ImageError::io(format!("open {name}")))?;
            layer::apply(file, &name, Some(diff_id), &mut tree)?;
            // Its content is unpacked; both at once would take the room twice.
            let _ = std::fs::remove_file(&path);
        }
        Ok(tree.done())
    }
}

/// The manifest for this machine that the name leads to.
async fn find_manifest(client: &Client, asked: &Reference, name: &str) -> Result<Manifest, ImageError> {
    let mut expected = asked.digest().map(str::to_owned);
    let mut reference = expected.clone().unwrap_or_else(|| asked.tag().unwrap_or("latest").to_owned());
    for _ in 0..DEEPEST {
        let (bytes, kind) = client.manifest(&reference).await.map_err(|failure| refused(name, failure))?;
        if let Some(expected) = expected.filter(|expected| *expected != digest(&bytes)) {
            return Err(ImageError::Digest { what: "the manifest".to_owned(), expected, found: digest(&bytes) });
        }
        let said: Kind = parse("the manifest", &bytes)?;
        if !is_index(said.media_type.as_deref().unwrap_or(&kind)) {
            return parse("the manifest", &bytes);
        }
        let index: Index = parse("an index", &bytes)?;
        let next = index.fitting()?;
        reference = format!("sha256:{}", next.digits()?);
        expected = Some(reference.clone());
    }
    Err(ImageError::Malformed("its indexes lead to no manifest".to_owned()))
}

/// What a document says it is.
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
