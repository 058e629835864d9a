//! Stores screenshots in a directory (the default) or in an S3 bucket.
//!
//! ```text
//! screenshots/{job}/agent/{timestamp}_{viewport}.webp            requested by the agent
//! screenshots/{job}/auto/{commit}_{viewport}.webp                after a phase commit
//! screenshots/{job}/auto/devserver-{timestamp}_{viewport}.webp   after a start of the dev server
//! ```
//!
//! A stored screenshot has a URL: on the configured CDN, else presigned by S3, else signed by a
//! [`LinkSigner`](crate::link::LinkSigner) for files that the Sandbar server serves.

mod config;

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
use url::Url;

pub use config::{Credentials, S3Config, Secret, StoreConfig, StoreLocation};

const PUT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RETRIES: usize = 3;
/// The maximum that S3 allows.
const URL_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_NAME: usize = 128;

/// Why a screenshot was taken; part of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occasion {
    /// The agent called the tool.
    Agent { at: Timestamp },
    /// A phase was committed.
    Commit { id: String },
    /// The dev server started.
    DevServer { at: Timestamp },
}

/// A screenshot that is durably stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredScreenshot {
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

/// Stores screenshots and returns their URLs.
#[derive(Debug, Clone)]
pub struct ScreenshotStore {
    objects: Arc<dyn ObjectStore>,
    /// Metadata of objects in a bucket; files have none.
    attributes: Attributes,
    links: Links,
}

/// How a stored screenshot is addressed.
#[derive(Debug, Clone)]
enum Links {
    /// URL prefix of the key, with a trailing slash.
    Under(Url),
    Signed(Arc<AmazonS3>),
}

impl ScreenshotStore {
    /// Opens the configured store. Sends nothing yet; creates a missing directory.
    ///
    /// # Errors
    /// [`StoreError`] if the directory cannot be created or an address of the configuration is
    /// invalid.
    pub fn open(config: StoreConfig) -> Result<Self, StoreError> {
        let store = match config.place {
            StoreLocation::Disk { directory, served_at } => Self::open_disk(&directory, served_at.as_deref())?,
            StoreLocation::S3(s3) => Self::open_s3(s3)?,
        };
        match config.cdn {
            Some(cdn) => store.with_cdn(&cdn),
            None => Ok(store),
        }
    }

    /// Stores screenshots as files under `directory`, fsynced before `put` returns.
    ///
    /// # Errors
    /// [`StoreError::Directory`] if it cannot be created, [`StoreError::Config`] if `served_at` is
    /// not a URL.
    pub fn open_disk(directory: &Path, served_at: Option<&str>) -> Result<Self, StoreError> {
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

    /// Stores screenshots in a bucket, with presigned URLs that are valid for seven days.
    ///
    /// # Errors
    /// [`StoreError::Config`] if the configuration is invalid.
    pub fn open_s3(config: S3Config) -> Result<Self, StoreError> {
        let S3Config { bucket, region, endpoint, credentials } = config;
        let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: PUT_TIMEOUT, ..RetryConfig::default() };
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let options = ClientOptions::new()
            .with_allow_http(plain)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(PUT_TIMEOUT);
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

    fn with_cdn(self, cdn: &str) -> Result<Self, StoreError> {
        let address = if cdn.contains("://") { cdn.to_owned() } else { format!("https://{cdn}") };
        Ok(Self { links: Links::Under(prefix(&address)?), ..self })
    }

    /// Stores one screenshot of `job`: the id of the job, else of the workspace or the sandbox.
    /// Replaces a screenshot with the same key.
    ///
    /// # Errors
    /// [`StoreError::InvalidName`] if an id cannot be part of a key, [`StoreError::Put`] if the
    /// store fails, [`StoreError::TimedOut`] if it is too slow.
    pub async fn put(
        &self,
        job: &str,
        occasion: &Occasion,
        viewport: &str,
        webp: Bytes,
    ) -> Result<StoredScreenshot, StoreError> {
        let key = key(job, occasion, viewport)?;
        let options = PutOptions { attributes: self.attributes.clone(), ..PutOptions::default() };
        let path = Key::from(key.as_str());
        let put = self.objects.put_opts(&path, webp.into(), options);
        match tokio::time::timeout(PUT_TIMEOUT, put).await {
            Ok(Ok(_)) => {}
            Ok(Err(source)) => return Err(StoreError::Put { key, source }),
            Err(_) => return Err(StoreError::TimedOut { key, within: PUT_TIMEOUT }),
        }
        let url = match &self.links {
            Links::Under(url) => url
                .join(&key)
                .map_err(|error| StoreError::Config { what: "no address can be made", source: error.into() })?,
            Links::Signed(bucket) => {
                let signed = bucket.signed_url(http::Method::GET, &path, URL_LIFETIME).await;
                signed.map_err(|source| StoreError::Put { key: key.clone(), source })?
            }
        };
        Ok(StoredScreenshot { key, url })
    }
}

/// Parses a URL prefix and ends it with a slash.
fn prefix(address: &str) -> Result<Url, StoreError> {
    let what = "an address for pictures cannot be read";
    Url::parse(&format!("{}/", address.trim_end_matches('/')))
        .map_err(|error| StoreError::Config { what, source: error.into() })
}

/// Prefix of all keys.
pub(crate) const ROOT: &str = "screenshots";

fn key(job: &str, occasion: &Occasion, viewport: &str) -> Result<String, StoreError> {
    let (job, viewport) = (check_name(job)?, check_name(viewport)?);
    Ok(match occasion {
        Occasion::Agent { at } => format!("{ROOT}/{job}/agent/{}_{viewport}.webp", format_timestamp(*at)),
        Occasion::Commit { id } => format!("{ROOT}/{job}/auto/{}_{viewport}.webp", check_name(id)?),
        Occasion::DevServer { at } => format!("{ROOT}/{job}/auto/devserver-{}_{viewport}.webp", format_timestamp(*at)),
    })
}

/// Path of a screenshot in a store on disk; [`None`] if `key` is not the key of a screenshot.
pub fn screenshot_path(directory: &Path, key: &str) -> Option<PathBuf> {
    let parts: Vec<&str> = key.split('/').collect();
    let &[root, job, occasion, file] = parts.as_slice() else { return None };
    let is_key = root == ROOT
        && matches!(occasion, "agent" | "auto")
        && file.ends_with(".webp")
        && check_name(job).is_ok()
        && check_name(file.trim_end_matches(".webp")).is_ok();
    is_key.then(|| directory.join(key))
}

/// In milliseconds, so that a second capture does not replace the first.
fn format_timestamp(at: Timestamp) -> String {
    at.strftime("%Y%m%dT%H%M%S%3fZ").to_string()
}

/// Validates an id: it comes from outside and becomes part of a path.
fn check_name(text: &str) -> Result<&str, StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=MAX_NAME).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(allowed);
    if fits { Ok(text) } else { Err(StoreError::InvalidName { name: text.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Timestamp {
        "2026-11-16T00:09:37.0625Z".parse().expect("a time")
    }

    #[test]
    fn keys_follow_the_documented_layout() {
        let check = |occasion: &Occasion, wanted: &str| {
            assert_eq!(key("job-1", occasion, "desktop").expect("a key"), wanted);
        };
        check(&Occasion::Agent { at: at() }, "screenshots/job-1/agent/20261116T000937062Z_desktop.webp");
        check(&Occasion::Commit { id: "3f2a".into() }, "screenshots/job-1/auto/3f2a_desktop.webp");
        check(&Occasion::DevServer { at: at() }, "screenshots/job-1/auto/devserver-20261116T000937062Z_desktop.webp");
    }

    #[test]
    fn ids_cannot_escape_their_directory() {
        for bad in ["", "..", ".hidden", "a/b", "a\\b", "a b", "a%2fb", "ü", &"x".repeat(129)] {
            let commit = Occasion::Commit { id: bad.to_owned() };
            assert!(key(bad, &Occasion::Agent { at: at() }, "mobile").is_err(), "{bad:?}");
            assert!(key("job", &commit, "mobile").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_screenshot_keys_map_to_files() {
        let directory = Path::new("/d");
        let good = "screenshots/job-1/agent/20261116T000937062Z_desktop.webp";
        assert_eq!(screenshot_path(directory, good), Some(directory.join(good)));
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
            assert_eq!(screenshot_path(directory, bad), None, "{bad}");
        }
    }

    #[test]
    fn configuration_rejects_unknown_fields_and_secrets() {
        let read = |text: &str| serde_json::from_str::<StoreLocation>(text);
        assert!(read(r#"{"s3": {"bucket": "b", "endpoint": "http://s3.test"}}"#).is_ok());
        for keys in ["access_key_id", "secret_access_key", "credentials"] {
            assert!(read(&format!(r#"{{"s3": {{"bucket": "b", "{keys}": "x"}}}}"#)).is_err(), "{keys}");
        }
        assert!(read(r#"{"disk": {"directory": "/tmp/x"}}"#).is_ok());
        assert!(read(r#"{"disk": {"directory": "/tmp/x", "typo": 1}}"#).is_err());
        let credentials = Credentials { access_key_id: "id".into(), secret_access_key: Secret::new("hush") };
        let s3 = S3Config { bucket: "b".into(), region: "r".into(), endpoint: None, credentials: Some(credentials) };
        let config = StoreConfig { place: StoreLocation::S3(s3), cdn: Some("c.test".into()) };
        assert!(!format!("{config:?}").contains("hush"), "{config:?}");
        let store = ScreenshotStore::open(config).expect("a store");
        assert!(!format!("{store:?}").contains("hush"), "{store:?}");
    }
}
