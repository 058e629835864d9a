//! The object store of checkpoints: in memory, in a directory, or in an S3 bucket. Every request
//! has a timeout, and so does every step of a long transfer.
//!
//! Objects appear atomically in every store: small ones by one request, large ones as multipart
//! uploads. Leftovers of an interrupted upload are never listed. In a directory, [`Objects::sweep`]
//! removes them; in a bucket, a lifecycle rule for incomplete uploads has to.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::prefix::PrefixStore;
use object_store::{
    Attribute, Attributes, ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};
use secret::Secret;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::listing::StoredObject;
use crate::upload::Upload;

/// The timeout of one request, or one step of a transfer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRIES: usize = 3;
/// The size of a range request. A broken connection loses at most this.
const RANGE: u64 = 4 * 1024 * 1024;
const PRIVATE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Concurrent creators that test whether a store lets only one of them win.
const RACERS: usize = 4;
/// Smaller objects may use the reserved disk space: they are metadata that restores and prunes
/// need.
const SMALL_OBJECT: usize = 64 * 1024;

/// A bucket of AWS, or of another service with the same protocol.
#[derive(Debug, Clone)]
pub struct S3Config {
    pub bucket: String,
    /// Prepended to all keys; may be empty.
    pub prefix: String,
    pub region: String,
    /// The URL of a service other than AWS. `http://` means no encryption.
    pub endpoint: Option<String>,
    /// Access key id and secret; [`None`]: the machine's own role.
    pub credentials: Option<(String, Secret)>,
}

/// How a store handles a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The store enforces it.
    Kept,
    /// The store accepts what the condition forbids: callers must not rely on it.
    Ignored,
    /// The store rejects conditions.
    Unsupported,
}

/// How a store handles conditional puts, determined by probing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionalPuts {
    /// `If-None-Match: *`: one of many concurrent creators wins.
    pub create: Condition,
    /// `If-Match`: only if the object is unchanged.
    pub update: Condition,
}

/// Why an operation on an object failed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectStoreError {
    #[error("the objects' directory {} cannot be used", path.display())]
    Directory { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the bucket {bucket} cannot be used as configured")]
    Config { bucket: String, source: Box<object_store::Error> },
    #[error("{key} is not in the store")]
    NotFound { key: String },
    /// Another writer created it first.
    #[error("{key} is in the store already")]
    Exists { key: String },
    /// Free space there, or retain fewer checkpoints.
    #[error(
        "{} has no room for {key}: the last {} MiB of its disk stay free; remove files there, delete snapshots \
         (`sandbar workspace snapshots`), or keep fewer of them (`keep_snapshots` in the configuration)",
        path.display(), durable::RESERVE_BYTES >> 20
    )]
    NoSpace { path: PathBuf, key: String },
    #[error("the store did not {verb} {key} within {within:?}")]
    TimedOut { verb: &'static str, key: String, within: Duration },
    #[error("the store could not {verb} {key}")]
    Failed { verb: &'static str, key: String, source: Box<object_store::Error> },
}

impl ObjectStoreError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Exists { .. } => true,
            Self::Failed { source, .. } => !matches!(
                **source,
                object_store::Error::PermissionDenied { .. }
                    | object_store::Error::Unauthenticated { .. }
                    | object_store::Error::InvalidPath { .. }
            ),
            Self::Directory { .. } | Self::NoSpace { .. } | Self::Config { .. } | Self::NotFound { .. } => false,
        }
    }

    fn from_store(verb: &'static str, key: &Key, error: object_store::Error) -> Self {
        let key = key.to_string();
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound { key },
            object_store::Error::AlreadyExists { .. } => Self::Exists { key },
            source => Self::Failed { verb, key, source: Box::new(source) },
        }
    }
}

/// An object store. Cheap to clone.
#[derive(Clone)]
pub struct Objects {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The directory of a store of files.
    directory: Option<Arc<PathBuf>>,
    timeout: Duration,
    conditional: Arc<OnceCell<ConditionalPuts>>,
    /// Whether the store records content types.
    content_types: bool,
}

impl Objects {
    /// Wraps any store. Sends no request yet.
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, directory: None, timeout: REQUEST_TIMEOUT, conditional: Arc::default(), content_types: false }
    }

    /// A store in memory, gone with this process.
    pub fn memory() -> Self {
        Self::new(Arc::new(InMemory::new()))
    }

    /// A store of files below `directory`, which is created if missing. Acknowledged objects
    /// survive a power cut.
    ///
    /// # Errors
    /// [`ObjectStoreError::Directory`].
    pub fn disk(directory: &Path) -> Result<Self, ObjectStoreError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| ObjectStoreError::Directory {
            path: directory.to_owned(),
            source,
        };
        // Archives contain everything in a workspace, including keys.
        let made = std::fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(directory);
        made.map_err(|error| failed(error.into()))?;
        let store = LocalFileSystem::new_with_prefix(directory).map_err(|error| failed(error.into()))?;
        let directory = Some(Arc::new(directory.to_owned()));
        Ok(Self { directory, ..Self::new(Arc::new(store.with_fsync(true))) })
    }

    /// A store in a bucket. Sends no request yet.
    ///
    /// # Errors
    /// [`ObjectStoreError::Config`].
    pub fn s3(config: S3Config) -> Result<Self, ObjectStoreError> {
        let S3Config { bucket, prefix, region, endpoint, credentials } = config;
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: REQUEST_TIMEOUT, ..RetryConfig::default() };
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        // A whole transfer has no timeout; each of its steps has one.
        let options = ClientOptions::new()
            .with_allow_http(plain)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout_disabled()
            .with_read_timeout(REQUEST_TIMEOUT);
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&bucket)
            .with_region(region)
            .with_retry(retry)
            .with_client_options(options);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        if let Some((id, secret)) = credentials {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret.expose());
        }
        let store = builder.build().map_err(|error| ObjectStoreError::Config { bucket, source: Box::new(error) })?;
        let prefix = Key::from(prefix);
        let objects = if prefix.as_ref().is_empty() {
            Self::new(Arc::new(store))
        } else {
            Self::new(Arc::new(PrefixStore::new(store, prefix)))
        };
        Ok(Self { content_types: true, ..objects })
    }

    /// Sets the timeout of each request and each step of a transfer; the default is a minute.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How the store handles conditional puts. The first call probes it with objects under
    /// `probe/`, which are deleted again.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store cannot be used at all.
    pub async fn conditional_puts(&self) -> Result<ConditionalPuts, ObjectStoreError> {
        self.conditional.get_or_try_init(|| self.probe()).await.copied()
    }

    async fn probe(&self) -> Result<ConditionalPuts, ObjectStoreError> {
        let key = Key::from_iter(["probe".to_owned(), format!("{:032x}", rand::random::<u128>())]);
        let answer = self.try_conditions(&key).await;
        let deleted = self.delete(&key).await;
        let answer = answer?;
        deleted?;
        Ok(answer)
    }

    async fn try_conditions(&self, key: &Key) -> Result<ConditionalPuts, ObjectStoreError> {
        // Some servers enforce the condition only without concurrency.
        let racers = (0..RACERS).map(|racer| self.put_if(key, Bytes::from(format!("racer {racer}")), PutMode::Create));
        let answers = futures::future::join_all(racers).await;
        let create = match answers.iter().filter(|answer| answer.is_ok()).count() {
            1 => match self.put_if(key, Bytes::from_static(b"late"), PutMode::Create).await {
                Err(ObjectStoreError::Exists { .. }) => Condition::Kept,
                Ok(_) => Condition::Ignored,
                Err(error) => return Err(error),
            },
            0 => match answers.into_iter().find_map(Result::err) {
                Some(error) if is_unsupported(&error) => Condition::Unsupported,
                Some(error) => return Err(error),
                None => Condition::Unsupported,
            },
            _ => Condition::Ignored,
        };
        let known = self.put_if(key, Bytes::from_static(b"known"), PutMode::Overwrite).await?;
        self.put_if(key, Bytes::from_static(b"newer"), PutMode::Overwrite).await?;
        let update = match self.put_if(key, Bytes::from_static(b"blind"), PutMode::Update(known)).await {
            Ok(_) => Condition::Ignored,
            Err(ObjectStoreError::Failed { source, .. })
                if matches!(*source, object_store::Error::Precondition { .. }) =>
            {
                Condition::Kept
            }
            Err(error) if is_unsupported(&error) => Condition::Unsupported,
            Err(error) => return Err(error),
        };
        Ok(ConditionalPuts { create, update })
    }

    async fn put_if(&self, key: &Key, content: Bytes, mode: PutMode) -> Result<UpdateVersion, ObjectStoreError> {
        if content.len() > SMALL_OBJECT {
            self.reserve(key, content.len() as u64)?;
        }
        let options = PutOptions { mode, attributes: self.attributes(key), ..PutOptions::default() };
        let put = self.store.put_opts(key, content.into(), options);
        let done = self.with_deadline("store", key, put).await?;
        self.make_private(key);
        Ok(done.into())
    }

    /// Checks that writing `bytes` leaves the reserved disk space free.
    pub(crate) fn reserve(&self, key: &Key, bytes: u64) -> Result<(), ObjectStoreError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let path = directory.as_ref().clone();
        match durable::writable_bytes(&path) {
            Ok(writable) if writable >= bytes => Ok(()),
            Ok(_) => Err(ObjectStoreError::NoSpace { path, key: key.to_string() }),
            Err(error) => Err(ObjectStoreError::Directory { path, source: error.into() }),
        }
    }

    /// The directory for unnamed files while an object is written or read.
    pub(crate) fn spool_directory(&self) -> Arc<PathBuf> {
        self.directory.clone().unwrap_or_else(|| Arc::new(std::env::temp_dir()))
    }

    /// The content type of an object, by its key. Directories cannot record it.
    pub(crate) fn attributes(&self, key: &Key) -> Attributes {
        let kind = match key.extension() {
            Some("gz") => "application/gzip",
            Some("json") => "application/json",
            _ => return Attributes::new(),
        };
        match self.content_types {
            true => Attributes::from_iter([(Attribute::ContentType, kind)]),
            false => Attributes::new(),
        }
    }

    /// Makes an object that is a file readable by its owner only. The library creates files by the
    /// process's umask.
    pub(crate) fn make_private(&self, key: &Key) {
        let Some(directory) = &self.directory else { return };
        let path = key.parts().fold(directory.as_ref().clone(), |path, part| path.join(part.as_ref()));
        if let Err(error) = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(PRIVATE)) {
            tracing::warn!(path = %path.display(), %error, "an object may be readable by other users");
        }
    }

    /// Stores a small object, replacing an earlier one.
    pub async fn put(&self, key: &Key, content: Bytes) -> Result<(), ObjectStoreError> {
        self.put_if(key, content, PutMode::Overwrite).await.map(drop)
    }

    /// Stores a small object that must not exist yet, as far as the store enforces that.
    pub async fn create(&self, key: &Key, content: Bytes) -> Result<(), ObjectStoreError> {
        if self.conditional_puts().await?.create != Condition::Kept {
            return self.put(key, content).await;
        }
        match self.put_if(key, content.clone(), PutMode::Create).await {
            // The response to our own put may have been lost, and the client retried it.
            Err(ObjectStoreError::Exists { key: name }) => match self.get(key).await {
                Ok(there) if there == content => Ok(()),
                _ => Err(ObjectStoreError::Exists { key: name }),
            },
            other => other.map(drop),
        }
    }

    /// Starts an upload of any size.
    pub fn upload(&self, key: Key) -> Upload {
        Upload::begin(self.clone(), key)
    }

    /// Reads a small object.
    pub async fn get(&self, key: &Key) -> Result<Bytes, ObjectStoreError> {
        self.with_deadline("read", key, async { self.store.get(key).await?.bytes().await }).await
    }

    /// Streams an object by one request.
    pub(crate) async fn stream(
        &self,
        key: Key,
    ) -> Result<impl Stream<Item = Result<Bytes, ObjectStoreError>> + Send + 'static, ObjectStoreError> {
        let pieces = self.with_deadline("read", &key, self.store.get(&key)).await?.into_stream();
        let objects = self.clone();
        Ok(stream::unfold((pieces, objects, key), |(mut pieces, objects, key)| async move {
            let next = async { pieces.next().await.transpose() };
            let piece = objects.with_deadline("read", &key, next).await.transpose()?;
            Some((piece, (pieces, objects, key)))
        }))
    }

    /// The size of an object; [`None`] when there is none.
    pub async fn size(&self, key: &Key) -> Result<Option<u64>, ObjectStoreError> {
        Ok(self.stat(key).await?.map(|object| object.size))
    }

    /// The metadata of an object; [`None`] when there is none.
    pub(crate) async fn stat(&self, key: &Key) -> Result<Option<StoredObject>, ObjectStoreError> {
        match self.with_deadline("read the metadata of", key, self.store.head(key)).await {
            Ok(meta) => Ok(Some(StoredObject { size: meta.size, tag: meta.e_tag })),
            Err(ObjectStoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Streams an object of `size` bytes in order, prefetching the next range.
    pub fn read(&self, key: Key, size: u64) -> impl Stream<Item = Result<Bytes, ObjectStoreError>> + Send + 'static {
        let objects = self.clone();
        let step = usize::try_from(RANGE).unwrap_or(usize::MAX);
        stream::iter((0..size).step_by(step))
            .map(move |start| {
                let (objects, key) = (objects.clone(), key.clone());
                async move {
                    let range = start..size.min(start + RANGE);
                    objects.with_deadline("read", &key, objects.store.get_range(&key, range)).await
                }
            })
            .buffered(2)
    }

    /// All objects with a prefix.
    pub async fn list(&self, folder: &Key) -> Result<Vec<ObjectMeta>, ObjectStoreError> {
        self.with_deadline("list", folder, self.store.list(Some(folder)).try_collect()).await
    }

    /// Deletes an object; deleting an absent one succeeds.
    pub async fn delete(&self, key: &Key) -> Result<(), ObjectStoreError> {
        match self.with_deadline("delete", key, self.store.delete(key)).await {
            Err(ObjectStoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    /// Removes leftovers of uploads whose process was killed. No upload to this prefix may be in
    /// progress.
    pub async fn sweep(&self, folder: &Key) -> Result<usize, ObjectStoreError> {
        let Some(directory) = &self.directory else { return Ok(0) };
        let path = folder.parts().fold(directory.as_ref().clone(), |path, part| path.join(part.as_ref()));
        let failed = |source: std::io::Error| ObjectStoreError::Directory { path: path.clone(), source: source.into() };
        let mut entries = match tokio::fs::read_dir(&path).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(failed(error)),
        };
        let mut removed = 0;
        while let Some(entry) = entries.next_entry().await.map_err(failed)? {
            // The library's names of staged files.
            let name = entry.file_name();
            let staged = name.to_str().and_then(|name| name.rsplit_once('#'));
            if staged.is_some_and(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit())) {
                tokio::fs::remove_file(entry.path()).await.map_err(failed)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(crate) async fn with_deadline<T>(
        &self,
        verb: &'static str,
        key: &Key,
        work: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, ObjectStoreError> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(done) => done.map_err(|error| ObjectStoreError::from_store(verb, key, error)),
            Err(_) => Err(ObjectStoreError::TimedOut { verb, key: key.to_string(), within: self.timeout }),
        }
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&format_args!("{}", self.store)).finish()
    }
}

fn is_unsupported(error: &ObjectStoreError) -> bool {
    let ObjectStoreError::Failed { source, .. } = error else { return false };
    matches!(**source, object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. })
}
