//! Where pictures are kept: a directory by default, an S3 bucket by configuration.
//!
//! ```text
//! screenshots/{job}/agent/{timestamp}_{viewport}.webp            asked for by the agent
//! screenshots/{job}/auto/{commit}_{viewport}.webp                after a phase commit
//! screenshots/{job}/auto/devserver-{timestamp}_{viewport}.webp   after the dev server's start
//! ```
//!
//! The address that goes with a picture is the configured CDN's; without one it is signed by S3, or by a
//! [`LinkSigner`](crate::link::LinkSigner) for pictures on disk that a server of ours serves.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::signer::Signer;
use object_store::{Attribute, Attributes, ClientOptions, ObjectStore, PutOptions, RetryConfig};
use serde::{Deserialize, Serialize};
use url::Url;

const PUT_WITHIN: Duration = Duration::from_secs(30);
const RETRIES: usize = 3;
/// The longest that S3 allows.
const SIGNED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
const LONGEST_NAME: usize = 128;

/// Which store, and how its pictures are addressed.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub place: Place,
    /// A domain (`cdn.example.com`) or the beginning of an address (`https://example.com/media`) at which the store's content is
    /// public.
    pub cdn: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Place {
    Disk {
        directory: PathBuf,
        /// The beginning of the address under which a server offers the directory; without it addresses are `file://`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        served_at: Option<String>,
    },
    S3(S3Config),
}

/// A bucket of AWS, or of another service with the same protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    pub bucket: String,
    #[serde(default = "S3Config::default_region")]
    pub region: String,
    /// Another service than AWS. With `http://` nothing is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Never part of a configuration file. Without them the machine's own role is used.
    #[serde(skip)]
    pub credentials: Option<Credentials>,
}

/// What opens a bucket.
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

/// A text that is never shown.
#[derive(Clone)]
pub struct Secret(String);

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

/// Why a picture was taken; part of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occasion {
    /// The agent asked for it.
    Agent { at: Timestamp },
    /// A phase was committed.
    Commit { id: String },
    /// The dev server has started.
    DevServer { at: Timestamp },
}

/// A picture that is safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub key: String,
    pub url: Url,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{name:?} cannot be part of a picture's name: letters, digits, '-', '_' and '.' can, and 128 of them")]
    InvalidName { name: String },
    #[error("the screenshots' directory {} cannot be used", path.display())]
    Directory { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the screenshot store's configuration is wrong: {what}")]
    Config { what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{key} could not be stored")]
    Put { key: String, source: object_store::Error },
    #[error("{key} was not stored within {within:?}")]
    TimedOut { key: String, within: Duration },
}

/// Keeps pictures and says where they are.
#[derive(Debug, Clone)]
pub struct ScreenshotStore {
    objects: Arc<dyn ObjectStore>,
    /// What a bucket keeps with a picture; files have no such thing.
    attributes: Attributes,
    links: Links,
}

/// How a stored picture is addressed.
#[derive(Debug, Clone)]
enum Links {
    /// The key follows this, which ends with a slash.
    Under(Url),
    Signed(Arc<AmazonS3>),
}

impl ScreenshotStore {
    /// Opens the configured store. Nothing is sent yet; a directory is made if missing.
    pub fn open(config: StoreConfig) -> Result<Self, StoreError> {
        let store = match config.place {
            Place::Disk { directory, served_at } => Self::disk(&directory, served_at.as_deref())?,
            Place::S3(s3) => Self::s3(s3)?,
        };
        match config.cdn {
            Some(cdn) => store.behind(&cdn),
            None => Ok(store),
        }
    }

    /// Pictures as files under `directory`. A stored one survives a power cut.
    pub fn disk(directory: &Path, served_at: Option<&str>) -> Result<Self, StoreError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Directory {
            path: directory.to_owned(),
            source,
        };
        std::fs::create_dir_all(directory).map_err(|error| failed(error.into()))?;
        let objects = LocalFileSystem::new_with_prefix(directory).map_err(|error| failed(error.into()))?;
        let objects = objects.with_fsync(true);
        let links = match served_at {
            Some(address) => prefix(address)?,
            None => {
                let whole = directory.canonicalize().map_err(|error| failed(error.into()))?;
                Url::from_directory_path(whole).map_err(|()| failed("its path has no address".into()))?
            }
        };
        Ok(Self { objects: Arc::new(objects), attributes: Attributes::new(), links: Links::Under(links) })
    }

    /// Pictures in a bucket, with signed addresses that are good for seven days.
    pub fn s3(config: S3Config) -> Result<Self, StoreError> {
        let S3Config { bucket, region, endpoint, credentials } = config;
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: PUT_WITHIN, ..RetryConfig::default() };
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let options = ClientOptions::new()
            .with_allow_http(plain)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(PUT_WITHIN);
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(region)
            .with_retry(retry)
            .with_client_options(options);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        if let Some(Credentials { access_key_id, secret_access_key: Secret(secret) }) = credentials {
            builder = builder.with_access_key_id(access_key_id).with_secret_access_key(secret);
        }
        let what = "the bucket cannot be used";
        let bucket = builder.build().map_err(|error| StoreError::Config { what, source: error.into() })?;
        let bucket = Arc::new(bucket);
        let attributes = Attributes::from_iter([(Attribute::ContentType, "image/webp")]);
        Ok(Self { objects: Arc::clone(&bucket) as _, attributes, links: Links::Signed(bucket) })
    }

    fn behind(self, cdn: &str) -> Result<Self, StoreError> {
        let address = if cdn.contains("://") { cdn.to_owned() } else { format!("https://{cdn}") };
        Ok(Self { links: Links::Under(prefix(&address)?), ..self })
    }

    /// Stores one picture of `job`: the job's id, else the workspace's or the sandbox's. A picture of the same name is replaced.
    pub async fn put(&self, job: &str, occasion: &Occasion, viewport: &str, webp: Bytes) -> Result<Stored, StoreError> {
        let key = key(job, occasion, viewport)?;
        let options = PutOptions { attributes: self.attributes.clone(), ..PutOptions::default() };
        let path = Key::from(key.as_str());
        let put = self.objects.put_opts(&path, webp.into(), options);
        match tokio::time::timeout(PUT_WITHIN, put).await {
            Ok(Ok(_)) => {}
            Ok(Err(source)) => return Err(StoreError::Put { key, source }),
            Err(_) => return Err(StoreError::TimedOut { key, within: PUT_WITHIN }),
        }
        let url = match &self.links {
            Links::Under(url) => url
                .join(&key)
                .map_err(|error| StoreError::Config { what: "no address can be made", source: error.into() })?,
            Links::Signed(bucket) => {
                let signed = bucket.signed_url(http::Method::GET, &path, SIGNED_FOR).await;
                signed.map_err(|source| StoreError::Put { key: key.clone(), source })?
            }
        };
        Ok(Stored { key, url })
    }
}

/// An address that keys can follow.
fn prefix(address: &str) -> Result<Url, StoreError> {
    let what = "an address for pictures cannot be read";
    Url::parse(&format!("{}/", address.trim_end_matches('/')))
        .map_err(|error| StoreError::Config { what, source: error.into() })
}

/// Where all keys begin.
pub(crate) const ROOT: &str = "screenshots";

fn key(job: &str, occasion: &Occasion, viewport: &str) -> Result<String, StoreError> {
    let (job, viewport) = (name(job)?, name(viewport)?);
    Ok(match occasion {
        Occasion::Agent { at } => format!("{ROOT}/{job}/agent/{}_{viewport}.webp", stamp(*at)),
        Occasion::Commit { id } => format!("{ROOT}/{job}/auto/{}_{viewport}.webp", name(id)?),
        Occasion::DevServer { at } => format!("{ROOT}/{job}/auto/devserver-{}_{viewport}.webp", stamp(*at)),
    })
}

/// The file of a picture in a store on disk; [`None`] for what cannot be a picture's key.
pub fn file_of(directory: &Path, key: &str) -> Option<PathBuf> {
    let parts: Vec<&str> = key.split('/').collect();
    let &[root, job, occasion, file] = parts.as_slice() else { return None };
    let is_key = root == ROOT
        && matches!(occasion, "agent" | "auto")
        && file.ends_with(".webp")
        && name(job).is_ok()
        && name(file.trim_end_matches(".webp")).is_ok();
    is_key.then(|| directory.join(key))
}

/// Down to the millisecond, so that a second look at a page does not replace the first.
fn stamp(at: Timestamp) -> String {
    at.strftime("%Y%m%dT%H%M%S%3fZ").to_string()
}

/// Ids come from outside and become part of a path.
fn name(text: &str) -> Result<&str, StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=LONGEST_NAME).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
    if fits { Ok(text) } else { Err(StoreError::InvalidName { name: text.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Timestamp {
        "2026-11-16T00:09:37.0625Z".parse().expect("a time")
    }

    #[test]
    fn keys_are_as_decided() {
        let check = |occasion: &Occasion, wanted: &str| {
            assert_eq!(key("job-1", occasion, "desktop").expect("a key"), wanted);
        };
        check(&Occasion::Agent { at: at() }, "screenshots/job-1/agent/20261116T000937062Z_desktop.webp");
        check(&Occasion::Commit { id: "3f2a".into() }, "screenshots/job-1/auto/3f2a_desktop.webp");
        check(&Occasion::DevServer { at: at() }, "screenshots/job-1/auto/devserver-20261116T000937062Z_desktop.webp");
    }

    #[test]
    fn ids_cannot_leave_their_place() {
        for bad in ["", "..", ".hidden", "a/b", "a\\b", "a b", "a%2fb", "ü", &"x".repeat(129)] {
            let commit = Occasion::Commit { id: bad.to_owned() };
            assert!(key(bad, &Occasion::Agent { at: at() }, "mobile").is_err(), "{bad:?}");
            assert!(key("job", &commit, "mobile").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_keys_of_pictures_are_files() {
        let directory = Path::new("/d");
        let good = "screenshots/job-1/agent/20261116T000937062Z_desktop.webp";
        assert_eq!(file_of(directory, good), Some(directory.join(good)));
        for bad in [
            "screenshots/job/agent/../../x.webp",
            "screenshots/../agent/x.webp",
            "screenshots/job/agent/.hidden.webp",
            "screenshots/job/agent/x.html",
            "screenshots/job/other/x.webp",
            "screenshots/job/agent/a/x.webp",
            "/screenshots/job/agent/x.webp",
            ".link-secret",
            "",
        ] {
            assert_eq!(file_of(directory, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_configuration_is_read_strictly_and_has_no_secret() {
        let read = |text: &str| serde_json::from_str::<Place>(text);
        assert!(read(r#"{"s3": {"bucket": "b", "endpoint": "http://s3.test"}}"#).is_ok());
        for keys in ["access_key_id", "secret_access_key", "credentials"] {
            assert!(read(&format!(r#"{{"s3": {{"bucket": "b", "{keys}": "x"}}}}"#)).is_err(), "{keys}");
        }
        assert!(read(r#"{"disk": {"directory": "/tmp/x"}}"#).is_ok());
        assert!(read(r#"{"disk": {"directory": "/tmp/x", "typo": 1}}"#).is_err());
        let credentials = Credentials { access_key_id: "id".into(), secret_access_key: Secret::new("hush") };
        let s3 = S3Config { bucket: "b".into(), region: "r".into(), endpoint: None, credentials: Some(credentials) };
        let config = StoreConfig { place: Place::S3(s3), cdn: Some("c.test".into()) };
        assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        let store = ScreenshotStore::open(config).expect("a store");
        assert!(!format!("{store:?}").contains("hush"), "{store:?}");
    }
}
