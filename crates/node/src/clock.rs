//! The wall clock, passed in so that tests can let it stand still or leap.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// Tells the time of day at microseconds: what is stored and shown, so that both are always the same text.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        to_microseconds(Timestamp::now())
    }
}

/// Follows tokio's clock, which tests can pause, from a given start.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeClock {
    start: Timestamp,
    since: tokio::time::Instant,
}

impl RuntimeClock {
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start: to_microseconds(start), since: tokio::time::Instant::now() }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        to_microseconds(after(self.start, self.since.elapsed()))
    }
}

/// `moment` plus `duration`, or the end of representable time.
pub(crate) fn after(moment: Timestamp, duration: Duration) -> Timestamp {
    let sum = SignedDuration::try_from(duration).ok().and_then(|duration| moment.checked_add(duration).ok());
    to_microseconds(sum.unwrap_or(Timestamp::MAX))
}

/// How long from `now` until `moment`; nothing when it has passed.
pub(crate) fn until(now: Timestamp, moment: Timestamp) -> Duration {
    Duration::try_from(moment.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn to_microseconds(moment: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(moment.as_microsecond()).expect("a timestamp's own microseconds are in range")
}
