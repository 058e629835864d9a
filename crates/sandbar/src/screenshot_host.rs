//! Where screenshots are stored, for how long, and how the running server serves them: by signed
//! URLs that expire.

use crate::config::Config;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use browser::link::{LINK_LIFETIME, LinkSigner};
use browser::retention::Retention;
use browser::store::{Credentials, Secret, StoreConfig, StoreLocation, screenshot_path};
use data_directory::{FoundServer, MEDIA};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, StatusCode, Uri};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use url::Url;

/// The variables of AWS's own programs. No configuration file has these keys.
const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// Prefix of the keys of screenshots, and so of the paths of their URLs.
pub(crate) const PATHS: &str = "/screenshots/";

/// `[screenshots]` of the configuration.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScreenshotsConfig {
    /// A directory or an S3 bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "below `data`"))]
    pub place: Option<StoreLocation>,
    /// Domain, or beginning of a URL, at which the store's content is public. URLs are then built
    /// on it and not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdn: Option<String>,
    /// Oldest age of a screenshot below `data`, in days.
    pub keep_days: u32,
    /// Most screenshots below `data`.
    pub keep_count: usize,
    /// Most MiB of screenshots below `data`. The oldest goes first, whichever of the three limits
    /// is exceeded.
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
            None => StoreLocation::Disk { directory: data.join(MEDIA), served_at: None },
            Some(StoreLocation::S3(mut s3)) => {
                s3.credentials = match (variable(ACCESS_KEY_ID), variable(SECRET_ACCESS_KEY)) {
                    (Some(access_key_id), Some(secret)) => {
                        Some(Credentials { access_key_id, secret_access_key: Secret::new(secret) })
                    }
                    _ => None,
                };
                StoreLocation::S3(s3)
            }
            Some(disk) => disk,
        };
        StoreConfig { place, cdn: self.cdn.clone() }
    }

    /// The directory whose screenshots this machine's server serves; [`None`] if another server or
    /// a CDN does.
    fn hosted_directory(&self, data: &Path) -> Option<PathBuf> {
        match (&self.place, &self.cdn) {
            (None, None) => Some(data.join(MEDIA)),
            (Some(StoreLocation::Disk { directory, served_at: None }), None) => Some(directory.clone()),
            _ => None,
        }
    }

    /// The limits of the default directory. A configured directory is cleaned by its owner.
    fn retention(&self) -> Option<Retention> {
        self.place.is_none().then(|| Retention {
            max_age: Duration::from_secs(u64::from(self.keep_days) * 24 * 3600),
            max_count: self.keep_count,
            max_bytes: self.keep_mb.saturating_mul(1024 * 1024),
        })
    }
}

/// Signs URLs of stored screenshots on the running server, and removes the oldest.
pub(crate) struct ScreenshotHost {
    data: PathBuf,
    directory: PathBuf,
    signer: LinkSigner,
    retention: Option<Retention>,
}

impl ScreenshotHost {
    /// [`None`] where a bucket, a CDN or another server serves the screenshots.
    pub(crate) fn open(config: &Config) -> io::Result<Option<Self>> {
        let Some(directory) = config.screenshots.hosted_directory(&config.data) else { return Ok(None) };
        let signer = LinkSigner::open(&directory)?;
        let retention = config.screenshots.retention();
        Ok(Some(Self { data: config.data.clone(), directory, signer, retention }))
    }

    /// A signed URL of a screenshot on this machine's server; [`None`] while no server runs.
    pub(crate) fn url(&self, key: &str) -> Option<String> {
        let Ok(FoundServer::Serving(note)) = data_directory::find_server(&self.data) else { return None };
        let base = Url::parse(&note.url).ok()?;
        let expires = Timestamp::now().checked_add(LINK_LIFETIME).ok()?;
        self.signer.sign(&base, key, expires).map(Into::into)
    }

    /// Removes the oldest screenshots beyond the limits.
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

    /// Serves screenshots to requests with a valid signature.
    pub(crate) fn router(self) -> Router {
        Router::new().route(&format!("{PATHS}{{job}}/{{occasion}}/{{file}}"), get(serve)).with_state(Arc::new(self))
    }
}

async fn serve(State(host): State<Arc<ScreenshotHost>>, uri: Uri) -> Response {
    const NOT_KEPT: &str = "There is no such picture; the oldest are removed after a while.\n";
    let key = uri.path().trim_start_matches('/');
    let Some(file) = screenshot_path(&host.directory, key) else {
        return (StatusCode::NOT_FOUND, NOT_KEPT).into_response();
    };
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
