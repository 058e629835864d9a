//! Where screenshots are kept, for how long, and how the running server shows them: under signed
//! addresses that expire.

use crate::config::Config;
use crate::data::{self, Found, MEDIA};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use browser::link::{LINK_LIFETIME, LinkSigner};
use browser::retention::Retention;
use browser::store::{Credentials, Place, Secret, StoreConfig, file_of};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, StatusCode, Uri};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use url::Url;

/// Where AWS's own programs look for keys. No file of ours has them.
const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// What keys of pictures begin with, and so the paths of their addresses.
pub(crate) const PATHS: &str = "/screenshots/";

/// `[screenshots]` of the configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScreenshotsConfig {
    /// A directory or an S3 bucket; absent: below the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// A domain, or the beginning of an address, at which the store's content is public; absent:
    /// addresses are signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdn: Option<String>,
    /// Limits of what is kept below the data directory. The oldest picture goes first.
    pub keep_days: u32,
    pub keep_count: usize,
    pub keep_mb: u64,
}

impl Default for ScreenshotsConfig {
    fn default() -> Self {
        Self { place: None, cdn: None, keep_days: 30, keep_count: 10_000, keep_mb: 1024 }
    }
}

impl ScreenshotsConfig {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for (key, is_zero) in
            [("keep_days", self.keep_days == 0), ("keep_count", self.keep_count == 0), ("keep_mb", self.keep_mb == 0)]
        {
            anyhow::ensure!(!is_zero, "screenshots.{key} is 0; then no picture could be kept");
        }
        Ok(())
    }

    /// The store to open, with keys from the environment.
    pub(crate) fn store(&self, data: &Path, variable: impl Fn(&str) -> Option<String>) -> StoreConfig {
        let place = match self.place.clone() {
            None => Place::Disk { directory: data.join(MEDIA), served_at: None },
            Some(Place::S3(mut s3)) => {
                s3.credentials = match (variable(ACCESS_KEY_ID), variable(SECRET_ACCESS_KEY)) {
                    (Some(access_key_id), Some(secret)) => {
                        Some(Credentials { access_key_id, secret_access_key: Secret::new(secret) })
                    }
                    _ => None,
                };
                Place::S3(s3)
            }
            Some(disk) => disk,
        };
        StoreConfig { place, cdn: self.cdn.clone() }
    }

    /// The directory whose pictures this machine's server shows: no other server and no CDN does.
    fn hosted_directory(&self, data: &Path) -> Option<PathBuf> {
        match (&self.place, &self.cdn) {
            (None, None) => Some(data.join(MEDIA)),
            (Some(Place::Disk { directory, served_at: None }), None) => Some(directory.clone()),
            _ => None,
        }
    }

    /// What is kept below the data directory. A directory that was named is its owner's to clean.
    fn retention(&self) -> Option<Retention> {
        self.place.is_none().then(|| Retention {
            max_age: Duration::from_secs(u64::from(self.keep_days) * 24 * 3600),
            max_count: self.keep_count,
            max_bytes: self.keep_mb.saturating_mul(1024 * 1024),
        })
    }
}

/// Gives stored pictures addresses on the running server, and removes the oldest.
pub(crate) struct ScreenshotHost {
    data: PathBuf,
    directory: PathBuf,
    signer: LinkSigner,
    retention: Option<Retention>,
}

impl ScreenshotHost {
    /// [`None`] where a bucket, a CDN or another server shows the pictures.
    pub(crate) fn open(config: &Config) -> io::Result<Option<Self>> {
        let Some(directory) = config.screenshots.hosted_directory(&config.data) else { return Ok(None) };
        let signer = LinkSigner::open(&directory)?;
        let retention = config.screenshots.retention();
        Ok(Some(Self { data: config.data.clone(), directory, signer, retention }))
    }

    /// Where a browser on this machine sees the picture; [`None`] while no server runs.
    pub(crate) fn url(&self, key: &str) -> Option<String> {
        let Ok(Found::Serving(note)) = data::find_server(&self.data) else { return None };
        let base = Url::parse(&note.url).ok()?;
        let expires = Timestamp::now().checked_add(LINK_LIFETIME).ok()?;
        self.signer.sign(&base, key, expires).map(Into::into)
    }

    /// Removes the oldest pictures beyond the limits.
    pub(crate) async fn enforce_retention(&self) {
        let Some(retention) = self.retention else { return };
        let directory = self.directory.clone();
        let work = tokio::task::spawn_blocking(move || retention.enforce(&directory, SystemTime::now()));
        match work.await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "removed the oldest screenshots"),
            Ok(Err(error)) => {
                tracing::warn!(%error, directory = %self.directory.display(), "cannot remove the oldest screenshots");
            }
        }
    }

    /// Serves pictures to requests whose address was signed.
    pub(crate) fn router(self) -> Router {
        Router::new().route(&format!("{PATHS}{{job}}/{{occasion}}/{{file}}"), get(serve)).with_state(Arc::new(self))
    }
}

async fn serve(State(host): State<Arc<ScreenshotHost>>, uri: Uri) -> Response {
    const NOT_KEPT: &str = "There is no such picture; the oldest are removed after a while.\n";
    let key = uri.path().trim_start_matches('/');
    let Some(file) = file_of(&host.directory, key) else { return (StatusCode::NOT_FOUND, NOT_KEPT).into_response() };
    if let Err(error) = host.signer.check(key, uri.query().unwrap_or_default(), Timestamp::now()) {
        return (StatusCode::FORBIDDEN, format!("The picture is not shown: {error}.\n")).into_response();
    }
    let headers: [(HeaderName, &str); 4] = [
        (CONTENT_TYPE, "image/webp"),
        (CACHE_CONTROL, "private, max-age=86400, immutable"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    match tokio::fs::read(&file).await {
        Ok(webp) => (headers, webp).into_response(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (StatusCode::NOT_FOUND, NOT_KEPT).into_response(),
        Err(error) => {
            tracing::warn!(%error, file = %file.display(), "a screenshot cannot be read");
            (StatusCode::INTERNAL_SERVER_ERROR, "The picture cannot be read.\n").into_response()
        }
    }
}
