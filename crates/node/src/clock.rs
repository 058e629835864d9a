//! The clocks, passed in so that tests can let them stand still or leap.
//!
//! Two of them: the wall clock, which is shown and recorded and which others may set, and the
//! uptime (`CLOCK_BOOTTIME`). Leases follow the uptime while a server lives: a wall clock that is
//! set ends no sandbox early.

use jiff::{SignedDuration, Timestamp};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Tells the time of day at microseconds: what is stored and shown, so that both are always the same text.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
    /// Since some fixed moment, also while the machine slept. Never goes back, never leaps.
    fn uptime(&self) -> Duration;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        to_microseconds(Timestamp::now())
    }

    fn uptime(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Neither is negative: the clock begins at zero.
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// Follows tokio's clock, which tests can pause, from a given start; its wall clock can be set.
#[derive(Debug)]
pub struct RuntimeClock {
    start: Timestamp,
    since: tokio::time::Instant,
    /// By how much the wall clock was set ahead, in microseconds.
    ahead: AtomicI64,
}

impl RuntimeClock {
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start: to_microseconds(start), since: tokio::time::Instant::now(), ahead: AtomicI64::new(0) }
    }

    /// Sets the wall clock ahead, or back.
    pub fn jump(&self, by: SignedDuration) {
        let by = i64::try_from(by.as_micros()).unwrap_or(0);
        self.ahead.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_micros(self.ahead.load(Ordering::Relaxed));
        let unset = after(self.start, self.since.elapsed());
        to_microseconds(unset.checked_add(ahead).unwrap_or(unset))
    }

    fn uptime(&self) -> Duration {
        self.since.elapsed()
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
