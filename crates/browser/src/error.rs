//! Errors of the crate, one variant per reaction of the caller.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::capture::BlockedRequest;

/// Why the browser does not run.
#[derive(Debug, thiserror::Error)]
pub enum BrowserError {
    #[error("no browser was found{}; install it with: apt-get install chromium", .program.as_ref().map(|path| format!(" at {}", path.display())).unwrap_or_default())]
    NotFound { program: Option<PathBuf> },
    #[error("the browser shows untrusted pages and is not run as root; give it another user id")]
    Root,
    #[error("the browser's directory {} cannot be used", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("user {uid} cannot pass through {}, so the browser could not reach its profile", path.display())]
    DirectoryClosed { path: PathBuf, uid: u32 },
    #[error("the browser was not started: could not {step}")]
    Spawn { step: &'static str, source: io::Error },
    #[error(
        "the browser has no sandbox of its own here: this machine lets unprivileged users make no namespaces; \
         install it with: apt-get install chromium-sandbox"
    )]
    NoSandbox,
    #[error("the browser ended while it started; its last words: {last_words}")]
    Exited { last_words: String },
    #[error("the browser did not answer within {within:?} of its start")]
    TimedOut { within: Duration },
}

/// Why a capture failed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("{path:?} leads away from {origin}; only pages of the sandbox's own preview are shown")]
    InvalidPath { path: String, origin: String },
    #[error("{failures} captures of {origin} failed in a row; the next is tried in {} s. The last one: {last}", retry_in.as_secs().max(1))]
    CircuitOpen { origin: String, failures: u32, retry_in: Duration, last: String },
    #[error("no capture of the {most} that may run at once ended within {waited:?}")]
    Busy { most: usize, waited: Duration },
    #[error("the browser could not be started")]
    Browser(#[from] BrowserError),
    #[error("the browser ended during the capture")]
    BrowserDied,
    #[error("the page's process crashed while it was shown")]
    PageCrashed,
    #[error("nothing answers at {origin}: {reason}")]
    Unreachable { origin: String, reason: String },
    /// The page navigated to another origin, by a redirect or by script.
    #[error("the page leads to {url}, which is not of the sandbox's own preview; it was not opened")]
    LeftOrigin { url: String, blocked: Vec<BlockedRequest> },
    /// A download, an empty response, an invalid certificate, or a malformed response.
    #[error("{url} could not be shown: {reason}")]
    NotShown { url: String, reason: String },
    #[error("{what} took longer than {within:?}")]
    TimedOut { what: String, within: Duration },
    #[error("the {viewport} picture has {bytes} bytes, more than the {limit} that models accept")]
    TooLarge { viewport: String, bytes: usize, limit: usize },
    #[error("the browser refused {method}: {message}")]
    Refused { method: String, message: String },
    #[error("the browser has been closed")]
    Closed,
}

impl CaptureError {
    /// Whether the circuit breaker counts this error. It ignores decisions of the caller or of the
    /// page's author, and captures that were never attempted.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(
            self,
            Self::InvalidPath { .. }
                | Self::CircuitOpen { .. }
                | Self::Busy { .. }
                | Self::LeftOrigin { .. }
                | Self::Closed
        )
    }
}
