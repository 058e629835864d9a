//! The clocks, a port so that tests can stop them or set them.
//!
//! There are two: the wall clock, which is shown and recorded and which an administrator or NTP may
//! set, and the uptime (`CLOCK_BOOTTIME`). While a server runs, leases follow the uptime, so that
//! setting the wall clock ends no sandbox early.

use jiff::{SignedDuration, Timestamp};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The wall clock has a precision of microseconds, the precision of the records, so that recorded
/// and shown times have the same text.
pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
    /// Time since a fixed moment, including time in which the machine was suspended. Monotonic.
    fn uptime(&self) -> Duration;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        to_microseconds(Timestamp::now())
    }

    fn uptime(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Neither field is negative: the clock starts at zero.
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// Follows tokio's clock, which tests can pause, from a given start; tests can set its wall clock.
#[derive(Debug)]
pub struct RuntimeClock {
    start: Timestamp,
    since: tokio::time::Instant,
    /// How far the wall clock was set ahead, in microseconds.
    ahead: AtomicI64,
}

impl RuntimeClock {
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start: to_microseconds(start), since: tokio::time::Instant::now(), ahead: AtomicI64::new(0) }
    }

    /// Sets the wall clock ahead or back.
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

/// Returns `moment` plus `duration`, or the last representable moment.
pub(crate) fn after(moment: Timestamp, duration: Duration) -> Timestamp {
    let sum = SignedDuration::try_from(duration).ok().and_then(|duration| moment.checked_add(duration).ok());
    to_microseconds(sum.unwrap_or(Timestamp::MAX))
}

/// Returns the time from `now` until `moment`; zero if it has passed.
pub(crate) fn until(now: Timestamp, moment: Timestamp) -> Duration {
    Duration::try_from(moment.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn to_microseconds(moment: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(moment.as_microsecond()).expect("a timestamp's own microseconds are in range")
}
