//! The content of a volume. These calls go to a separate service, and carry the volume's token
//! instead of the API key.

use std::fmt;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use protocol::rest::VOLUME_FILES_MISSING;
use protocol::rest::volume::{VolumeAndToken, VolumeEntry, VolumeEntryUpdate};
use reqwest::{RequestBuilder, Response};
use serde::de::DeserializeOwned;
use url::Url;

use crate::client::Client;
use crate::config::join;
use crate::control::query::{Path, encode};
use crate::error::CallError;
use crate::transport::{Call, Failure, Idempotency, Refusal, read_json};
use secret::Secret;

/// A failed operation on a volume or its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    #[error("volume {volume:?} does not exist")]
    NotFound { volume: String },
    #[error("{path:?} does not exist in volume {volume:?}")]
    PathNotFound { volume: String, path: String },
    /// The service has a record of the volume but not its files.
    #[error("the files of volume {volume:?} cannot be reached: {message}")]
    FilesMissing { volume: String, message: String },
    /// Reading the content to upload failed.
    #[error("the content for {path:?} in volume {volume:?} cannot be read")]
    Source { volume: String, path: String, source: std::io::Error },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Options of a new file or directory in a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct EntryOptions {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// For a file: replaces an existing one. For a directory: creates its parents.
    pub force: Option<bool>,
}

/// One volume with its token. Cheap to clone.
#[derive(Clone)]
pub struct Volume {
    client: Client,
    id: String,
    name: String,
    token: Secret,
    url: Url,
}

/// Redacts the token.
impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Volume {
    pub(super) fn new(client: &Client, found: VolumeAndToken, call: &Call) -> Result<Self, CallError> {
        let VolumeAndToken { volume, token, domain } = found;
        let url = client.shared().endpoints.volume_url(domain.as_deref());
        let url = url.map_err(|error| call.protocol_error(error.to_string()))?;
        Ok(Self { client: client.clone(), id: volume.volume_id, name: volume.name, token: token.into(), url })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The token of its content API.
    pub fn token(&self) -> &Secret {
        &self.token
    }

    /// The entry at `path`.
    ///
    /// # Errors
    /// [`VolumeError::PathNotFound`], [`VolumeError::Call`].
    pub async fn stat(&self, path: &str) -> Result<VolumeEntry, VolumeError> {
        self.json(Method::GET, "path", path, "stat", |target| target, None).await
    }

    /// Whether `path` exists.
    ///
    /// # Errors
    /// [`VolumeError::Call`].
    pub async fn exists(&self, path: &str) -> Result<bool, VolumeError> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(VolumeError::PathNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists a directory recursively down to `depth`; 1 is the directory alone.
    ///
    /// # Errors
    /// [`VolumeError::PathNotFound`], [`VolumeError::Call`].
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<VolumeEntry>, VolumeError> {
        self.json(Method::GET, "dir", path, "list", |target| target.with("depth", Some(depth)), None).await
    }

    /// Creates a directory, by default without its parents.
    ///
    /// # Errors
    /// [`VolumeError::PathNotFound`] when a parent is missing, [`VolumeError::Call`].
    pub async fn make_dir(&self, path: &str, options: EntryOptions) -> Result<VolumeEntry, VolumeError> {
        self.json(Method::POST, "dir", path, "make directory", |target| with_options(target, options), None).await
    }

    /// Changes owner or permissions; absent fields of `update` stay unchanged.
    ///
    /// # Errors
    /// [`VolumeError::PathNotFound`], [`VolumeError::Call`].
    pub async fn update(&self, path: &str, update: VolumeEntryUpdate) -> Result<VolumeEntry, VolumeError> {
        let body = serde_json::to_vec(&update).expect("bodies of the protocol are JSON");
        self.json(Method::PATCH, "path", path, "change", |target| target, Some(body)).await
    }

    /// Removes a file, or a directory recursively. Returns false when it did not exist.
    ///
    /// # Errors
    /// [`VolumeError::Call`].
    pub async fn remove(&self, path: &str) -> Result<bool, VolumeError> {
        let call = self.call("remove", path, Idempotency::Idempotent);
        let target = self.target("path", path);
        let sent = self.client.shared().http.send(&call, |http| self.request(http, Method::DELETE, &target)).await;
        match self.checked(sent, path, &call) {
            Ok(_) => Ok(true),
            Err(VolumeError::PathNotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// [`VolumeError::PathNotFound`], [`VolumeError::Call`].
    pub async fn read(&self, path: &str) -> Result<Bytes, VolumeError> {
        let mut content = BytesMut::new();
        let mut pieces = std::pin::pin!(self.read_stream(path).await?);
        while let Some(piece) = pieces.try_next().await? {
            content.extend_from_slice(&piece);
        }
        Ok(content.freeze())
    }

    /// Streams a file. The deadline limits silence, not the whole transfer; dropping the stream
    /// closes it.
    ///
    /// # Errors
    /// [`VolumeError::PathNotFound`], [`VolumeError::Call`].
    pub async fn read_stream(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, VolumeError>> + Send + use<>, VolumeError> {
        let call = self.call("read", path, Idempotency::Idempotent);
        let target = self.target("file", path);
        let sent = self.client.shared().http.send(&call, |http| self.request(http, Method::GET, &target)).await;
        let response = self.checked(sent, path, &call)?;
        let idle_timeout = self.client.deadline();
        let pieces = stream::try_unfold((response, call), move |(mut response, call)| async move {
            match tokio::time::timeout(idle_timeout, response.chunk()).await {
                Err(_) => Err(VolumeError::Call(call.deadline_exceeded())),
                Ok(Err(error)) => Err(VolumeError::Call(call.lost(&error))),
                Ok(Ok(piece)) => Ok(piece.map(|piece| (piece, (response, call)))),
            }
        });
        Ok(pieces)
    }

    /// Writes a file, replacing its content.
    ///
    /// # Errors
    /// [`VolumeError::Call`].
    pub async fn write(&self, path: &str, content: impl Into<Bytes> + Send) -> Result<VolumeEntry, VolumeError> {
        let options = EntryOptions { force: Some(true), ..EntryOptions::default() };
        let content = content.into();
        let call = self.call("write", path, Idempotency::Idempotent);
        let target = String::from(with_options(Path::new(self.target("file", path)), options));
        let make = |http: &reqwest::Client| self.upload(http, &target).body(content.clone());
        let sent = self.client.shared().http.send(&call, make).await;
        self.read_entry(sent, path, &call).await
    }

    /// Writes a file from a stream, in constant memory. The deadline limits silence, not the whole
    /// transfer. An error of the stream leaves the file incomplete.
    ///
    /// # Errors
    /// [`VolumeError::Source`] when `content` fails, [`VolumeError::Call`].
    pub async fn write_stream(
        &self,
        path: &str,
        content: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
        options: EntryOptions,
    ) -> Result<VolumeEntry, VolumeError> {
        let (call, progress) = self.call("write", path, Idempotency::NotIdempotent).with_progress();
        let target = String::from(with_options(Path::new(self.target("file", path)), options));
        let failure = std::sync::Arc::new(parking_lot::Mutex::new(None));
        let noted = std::sync::Arc::clone(&failure);
        let content = content.map(move |piece| {
            progress.note();
            piece.map_err(|error| {
                let broken = std::io::Error::new(error.kind(), "the content cannot be read");
                *noted.lock() = Some(error);
                broken
            })
        });
        let http = &self.client.shared().http;
        let request = self.upload(http.pooled(), &target).body(reqwest::Body::wrap_stream(content));
        let sent = http.send_body(&call, request).await;
        if let Some(source) = failure.lock().take() {
            return Err(VolumeError::Source { volume: self.name.clone(), path: path.to_owned(), source });
        }
        self.read_entry(sent, path, &call).await
    }

    fn call(&self, what: &str, path: &str, idempotency: Idempotency) -> Call {
        Call::new(format!("{what} {path:?} in volume {:?}", self.name), idempotency, self.client.deadline())
    }

    fn target(&self, kind: &str, path: &str) -> String {
        Path::new(format!("/volumecontent/{}/{kind}", encode(&self.id))).with("path", Some(path)).into()
    }

    fn request(&self, http: &reqwest::Client, method: Method, target: &str) -> RequestBuilder {
        http.request(method, join(&self.url, target)).bearer_auth(self.token.expose())
    }

    fn upload(&self, http: &reqwest::Client, target: &str) -> RequestBuilder {
        self.request(http, Method::PUT, target).header(http::header::CONTENT_TYPE, "application/octet-stream")
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        kind: &str,
        path: &str,
        what: &str,
        options: impl FnOnce(Path) -> Path,
        body: Option<Vec<u8>>,
    ) -> Result<T, VolumeError> {
        let idempotency = if method == Method::POST { Idempotency::NotIdempotent } else { Idempotency::Idempotent };
        let call = self.call(what, path, idempotency);
        let target = String::from(options(Path::new(self.target(kind, path))));
        let make = |http: &reqwest::Client| {
            let request = self.request(http, method.clone(), &target);
            match &body {
                Some(body) => request.header(http::header::CONTENT_TYPE, "application/json").body(body.clone()),
                None => request,
            }
        };
        let sent = self.client.shared().http.send(&call, make).await;
        Ok(read_json(self.checked(sent, path, &call)?, &call).await?)
    }

    async fn read_entry(
        &self,
        sent: Result<Response, Failure>,
        path: &str,
        call: &Call,
    ) -> Result<VolumeEntry, VolumeError> {
        Ok(read_json(self.checked(sent, path, call)?, call).await?)
    }

    fn checked(&self, sent: Result<Response, Failure>, path: &str, call: &Call) -> Result<Response, VolumeError> {
        sent.map_err(|failure| match failure {
            Failure::Refused(Refusal { status: 404, .. }) => {
                VolumeError::PathNotFound { volume: self.name.clone(), path: path.to_owned() }
            }
            Failure::Refused(refusal) if refusal.is(VOLUME_FILES_MISSING) => {
                VolumeError::FilesMissing { volume: self.name.clone(), message: refusal.message }
            }
            other => other.into_error(call).into(),
        })
    }
}

fn with_options(target: Path, options: EntryOptions) -> Path {
    let EntryOptions { uid, gid, mode, force } = options;
    target.with("uid", uid).with("gid", gid).with("mode", mode).with("force", force)
}
