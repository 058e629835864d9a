//! Images of a registry.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::manifest::OciDescriptor;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference};
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use crate::config::{ImageConfig, written};
use crate::error::ImageError;
use crate::layer;
use crate::unpack::{Limits, Owners, Tree, Unpacked};

/// Longest silence of a registry.
const SILENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(15);
/// Layers of an image; kernels and tools allow 128.
const MOST_LAYERS: usize = 500;

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
/// to without TLS; so is loopback, unless the mirror begins with `https://`.
#[derive(Debug, Clone, Default)]
pub struct Mirrors(pub BTreeMap<String, String>);

impl Mirrors {
    /// The registry to ask for what is at `registry`, and whether without TLS.
    fn of(&self, registry: &str) -> (String, bool) {
        // As images name Docker's own, and as its server is called.
        let names = if registry == "index.docker.io" { &["docker.io", "index.docker.io"][..] } else { &[registry] };
        let mirror = names.iter().find_map(|name| self.0.get(*name)).map_or(registry, String::as_str);
        let (is_plain, host) = match mirror.split_once("://") {
            Some((scheme, host)) => (scheme == "http", host),
            None => (is_loopback(mirror), mirror),
        };
        (host.trim_end_matches('/').to_owned(), is_plain)
    }
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
    reference: Reference,
    name: String,
    config: ImageConfig,
    layers: Vec<OciDescriptor>,
}

impl RegistryImage {
    /// Asks the registry for `name`, such as `python:3.12` or `localhost:5000/a/b@sha256:…`.
    pub async fn find(name: &str, credentials: Option<&Credentials>, mirrors: &Mirrors) -> Result<Self, ImageError> {
        let asked: Reference = name.trim().parse().map_err(|_| ImageError::Name(name.to_owned()))?;
        let (registry, is_plain) = mirrors.of(asked.registry());
        let repository = asked.repository().to_owned();
        let reference = match (asked.digest(), asked.tag()) {
            (Some(digest), _) => Reference::with_digest(registry, repository, digest.to_owned()),
            (None, tag) => Reference::with_tag(registry, repository, tag.unwrap_or("latest").to_owned()),
        };
        let auth = match credentials {
            Some(Credentials { username, password }) => RegistryAuth::Basic(username.clone(), password.clone()),
            None => RegistryAuth::Anonymous,
        };
        let client = Client::new(ClientConfig {
            protocol: if is_plain { ClientProtocol::Http } else { ClientProtocol::Https },
            read_timeout: Some(SILENCE),
            connect_timeout: Some(CONNECT),
            ..ClientConfig::default()
        });
        let pulled = client.pull_manifest_and_config(&reference, &auth).await;
        let (manifest, _, config) = pulled.map_err(|error| refused(name, &error))?;
        if manifest.layers.len() > MOST_LAYERS {
            return Err(ImageError::Malformed(format!("it has {} layers", manifest.layers.len())));
        }
        let config = ImageConfig::parse(config.as_bytes())?;
        if config.digest != manifest.config.digest {
            let (expected, found) = (manifest.config.digest, config.digest);
            return Err(ImageError::Digest { what: "the configuration".to_owned(), expected, found });
        }
        if config.diff_ids.len() != manifest.layers.len() {
            return Err(ImageError::Malformed("the configuration and the layers do not belong together".to_owned()));
        }
        Ok(Self { client, reference, name: name.to_owned(), config, layers: manifest.layers })
    }

    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// What all layers together take, compressed.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| u64::try_from(layer.size).unwrap_or(0)).sum()
    }

    /// Brings the layers into the empty directory `place`, each checked by its digest.
    pub async fn download(&self, place: &Path, most: u64, tell: &(dyn Fn(String) + Sync)) -> Result<(), ImageError> {
        if self.bytes() > most {
            return Err(ImageError::TooLarge(most));
        }
        for (number, layer) in self.layers.iter().enumerate() {
            let size = u64::try_from(layer.size).unwrap_or(0);
            tell(format!("pulling layer {} of {}, {:.1} MB", number + 1, self.layers.len(), size as f64 / 1e6));
            self.fetch(layer, size, &place.join(number.to_string())).await?;
        }
        Ok(())
    }

    async fn fetch(&self, layer: &OciDescriptor, size: u64, target: &Path) -> Result<(), ImageError> {
        let failed =
            |cause: &dyn fmt::Display| ImageError::Registry { image: self.name.clone(), cause: cause.to_string() };
        let keep = || ImageError::io("keep a layer");
        let mut stream =
            self.client.pull_blob_stream(&self.reference, layer).await.map_err(|error| refused(&self.name, &error))?;
        let mut file = File::create_new(target).await.map_err(keep())?;
        let (mut hash, mut received) = (Sha256::new(), 0);
        loop {
            let next = tokio::time::timeout(SILENCE, stream.stream.next()).await;
            let Some(piece) = next.map_err(|_| failed(&"the registry fell silent"))? else { break };
            let piece = piece.map_err(|error| failed(&error))?;
            received += piece.len() as u64;
            if received > size {
                return Err(failed(&"a layer is larger than announced"));
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

fn refused(name: &str, error: &OciDistributionError) -> ImageError {
    use OciErrorCode::{ManifestUnknown, NameUnknown, NotFound};
    let cause = match error {
        OciDistributionError::ImageManifestNotFoundError(_) => "it does not exist there".to_owned(),
        OciDistributionError::RegistryError { envelope, .. }
            if envelope.errors.iter().any(|error| matches!(error.code, ManifestUnknown | NameUnknown | NotFound)) =>
        {
            "it does not exist there".to_owned()
        }
        OciDistributionError::AuthenticationFailure(_) | OciDistributionError::UnauthorizedError { .. } => {
            "the registry wants other credentials, or it does not exist".to_owned()
        }
        other => std::iter::successors(Some(other as &dyn std::error::Error), |error| error.source())
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": "),
    };
    ImageError::Registry { image: name.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_who_is_named_so_is_spoken_to_without_tls() {
        let mirrors = [
            ("docker.io", "http://mirror.lan:5000/"),
            ("a.example", "https://127.0.0.1:5443"),
            ("b.example", "c.example"),
        ];
        let mirrors = Mirrors(mirrors.map(|(name, mirror)| (name.to_owned(), mirror.to_owned())).into());
        for (registry, host, is_plain) in [
            ("index.docker.io", "mirror.lan:5000", true),
            ("a.example", "127.0.0.1:5443", false),
            ("b.example", "c.example", false),
            ("localhost:5000", "localhost:5000", true),
            ("127.0.0.1:5000", "127.0.0.1:5000", true),
            ("[::1]:5000", "[::1]:5000", true),
            ("localhost.evil.example", "localhost.evil.example", false),
            ("127.evil.example:80", "127.evil.example:80", false),
        ] {
            assert_eq!(mirrors.of(registry), (host.to_owned(), is_plain), "{registry}");
        }
    }
}
