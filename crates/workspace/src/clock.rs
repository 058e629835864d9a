//! The clock, passed in so that a test can advance or set it.
//!
//! There are two: the wall clock, which all processes share and an administrator can set, and a
//! monotonic clock of this machine. Timeouts within this process use the monotonic clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The source of time.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The clocks of the machine.
    #[default]
    System,
    /// Tokio's clock, which a test can pause, starting at `from`.
    Tokio { from: Timestamp, since: Instant },
    /// A clock that a test moves by hand.
    Manual(Arc<ManualClock>),
}

/// A clock that a test moves. It starts at the machine's wall clock.
#[derive(Debug)]
pub struct ManualClock {
    wall_us: AtomicI64,
    monotonic_us: AtomicI64,
    ticks_since: Option<Instant>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self {
            wall_us: AtomicI64::new(Timestamp::now().as_microsecond()),
            monotonic_us: AtomicI64::new(0),
            ticks_since: None,
        }
    }
}

impl ManualClock {
    /// A manual clock that also advances with tokio's time.
    pub fn ticking() -> Self {
        Self { ticks_since: Some(Instant::now()), ..Self::default() }
    }

    /// Like [`ManualClock::ticking`], from `wall` on.
    #[cfg(test)]
    pub(crate) fn ticking_from(wall: Timestamp) -> Self {
        Self { wall_us: AtomicI64::new(wall.as_microsecond()), ..Self::ticking() }
    }

    fn elapsed_ticks(&self) -> Duration {
        self.ticks_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Advances both clocks.
    pub fn advance(&self, span: Duration) {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        self.wall_us.fetch_add(micros, Ordering::SeqCst);
        self.monotonic_us.fetch_add(micros, Ordering::SeqCst);
    }

    /// Sets the wall clock as an administrator or NTP does; the monotonic clock stays.
    pub fn jump(&self, by: SignedDuration) {
        self.wall_us.fetch_add(i64::try_from(by.as_micros()).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Clock {
    /// A clock that follows tokio's time from now on.
    pub fn tokio() -> Self {
        Self::Tokio { from: Timestamp::now(), since: Instant::now() }
    }

    /// The wall clock.
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Tokio { from, since } => later(*from, since.elapsed()),
            Self::Manual(manual) => {
                let wall = Timestamp::from_microsecond(manual.wall_us.load(Ordering::SeqCst));
                later(wall.unwrap_or(Timestamp::MAX), manual.elapsed_ticks())
            }
        }
    }

    /// The monotonic clock: time since a fixed moment that all callers in this process share. It
    /// counts time during which the machine is suspended (`CLOCK_BOOTTIME`).
    pub fn monotonic(&self) -> Duration {
        match self {
            Self::System => Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
            Self::Tokio { since, .. } => since.elapsed(),
            Self::Manual(manual) => {
                let monotonic = u64::try_from(manual.monotonic_us.load(Ordering::SeqCst)).unwrap_or_default();
                Duration::from_micros(monotonic) + manual.elapsed_ticks()
            }
        }
    }

    /// The time left until `moment`; zero when it is past.
    pub fn until(&self, moment: Timestamp) -> Duration {
        Duration::try_from(moment.duration_since(self.now())).unwrap_or_default()
    }
}

/// `moment` plus `span`, saturating.
pub(crate) fn later(moment: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| moment.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

/// `moment` minus `span`, saturating.
pub(crate) fn earlier(moment: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).ok().and_then(|span| moment.checked_sub(span).ok()).unwrap_or(Timestamp::MIN)
}
