//! Pictures of what a sandbox serves, made elsewhere: the browser runs on the host and is no part of this crate.

use async_trait::async_trait;
use bytes::Bytes;

/// What to capture: a page of the sandbox's own preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capture {
    pub port: u16,
    /// Begins with a slash.
    pub url_path: String,
    pub full_page: bool,
}

/// One viewport of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shot {
    /// `desktop` or `mobile`.
    pub viewport: String,
    pub width: u32,
    pub height: u32,
    /// WebP.
    pub webp: Bytes,
    /// What the store of pictures calls it.
    pub key: String,
    /// Where the reader of the answer can see the picture; none while no server shows it. Paths of the host are not told.
    pub url: Option<String>,
    /// Nothing is to be seen on it.
    pub blank: bool,
}

/// A page in all viewports, the desktop first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shots {
    pub shots: Vec<Shot>,
    /// The page's title.
    pub title: Option<String>,
    /// Requests that would have left the sandbox.
    pub blocked: Vec<String>,
    /// What the page's console reported as errors.
    pub console_errors: Vec<String>,
}

/// Why there is no picture.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The address is not the sandbox's own preview, or cannot be one.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers on the port.
    #[error("nothing answers on port {port}")]
    NotServed { port: u16 },
    /// There is no browser on this host.
    #[error("no browser: {0}")]
    NoBrowser(String),
    /// It failed too often lately and rests.
    #[error("screenshots have failed repeatedly and rest for {seconds} s more: {last}")]
    Resting { seconds: u64, last: String },
    /// A picture that models cannot take.
    #[error("{0}")]
    Unusable(String),
    #[error("{0}")]
    Failed(String),
}

/// Makes pictures of a sandbox's pages.
#[async_trait]
pub trait Screenshots: Send + Sync {
    /// Loads the page, waits until it is quiet, and captures it in every viewport.
    async fn capture(&self, capture: Capture) -> Result<Shots, CaptureError>;
}
