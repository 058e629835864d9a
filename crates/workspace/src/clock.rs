//! What time it is. Passed in, so that a test can let weeks go by.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use tokio::time::Instant;

/// Where the time comes from.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    /// The machine's, which other processes have too.
    #[default]
    System,
    /// Tokio's, which a test can pause, counted from a moment.
    Tokio { from: Timestamp, since: Instant },
}

impl Clock {
    /// Goes with tokio's time from now on.
    pub fn tokio() -> Self {
        Self::Tokio { from: Timestamp::now(), since: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Tokio { from, since } => later(*from, since.elapsed()),
        }
    }

    /// How long it is until then; nothing when it is past.
    pub fn until(&self, moment: Timestamp) -> Duration {
        Duration::try_from(moment.duration_since(self.now())).unwrap_or_default()
    }
}

/// `moment` and a while, or the end of all time.
pub(crate) fn later(moment: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| moment.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

/// `moment` less a while, or the beginning of all time.
pub(crate) fn earlier(moment: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| moment.checked_sub(span).ok()).unwrap_or(Timestamp::MIN)
}
