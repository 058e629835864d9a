//! Port for screenshots of what a sandbox serves: the browser runs on the host and is no part of
//! this crate.

use async_trait::async_trait;
use bytes::Bytes;

/// A page of the sandbox's own preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScreenshotRequest {
    pub port: u16,
    /// Begins with a slash.
    pub url_path: String,
    pub full_page: bool,
}

/// The screenshot of a page in one viewport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screenshot {
    /// `desktop` or `mobile`.
    pub viewport: String,
    pub width: u32,
    pub height: u32,
    pub webp: Bytes,
    /// Its key in the screenshot store.
    pub key: String,
    /// Public URL; `None` while no server publishes the store. Paths of the host are never exposed.
    pub url: Option<String>,
    /// The image has a single colour.
    pub blank: bool,
}

/// A page in all viewports, desktop first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScreenshotSet {
    pub screenshots: Vec<Screenshot>,
    /// Title of the page.
    pub title: Option<String>,
    /// Blocked requests to other origins.
    pub blocked: Vec<String>,
    /// Errors on the page's console.
    pub console_errors: Vec<String>,
}

/// Why there is no screenshot.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ScreenshotError {
    /// The address is not within the sandbox's own preview.
    #[error("{0}")]
    Refused(String),
    /// Nothing listens on the port.
    #[error("nothing answers on port {port}")]
    NotServed { port: u16 },
    /// There is no browser on this host.
    #[error("no browser: {0}")]
    NoBrowser(String),
    /// The circuit breaker is open after repeated failures.
    #[error("screenshots have failed repeatedly and rest for {seconds} s more: {last}")]
    Resting { seconds: u64, last: String },
    /// Models do not accept the image.
    #[error("{0}")]
    Unusable(String),
    #[error("{0}")]
    Failed(String),
}

/// Takes screenshots of a sandbox's pages.
#[async_trait]
pub trait ScreenshotProvider: Send + Sync {
    /// Loads the page, waits for network idle, and captures it in every viewport.
    ///
    /// # Errors
    /// [`ScreenshotError`], whose variants tell whether a retry can help.
    async fn capture(&self, capture: ScreenshotRequest) -> Result<ScreenshotSet, ScreenshotError>;
}
