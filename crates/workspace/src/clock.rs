//! What time it is. Passed in, so that a test can let weeks go by or set the clock.
//!
//! Two clocks: the wall clock, which other processes and people have too and which can be set, and
//! a steady clock of this machine, which only goes forward. What has to last for a while in this
//! process is measured by the steady one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Where the time comes from.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The machine's, which other processes have too.
    #[default]
    System,
    /// Tokio's, which a test can pause, counted from a moment.
    Tokio { from: Timestamp, since: Instant },
    /// A test's own.
    Manual(Arc<ManualClock>),
}

/// A clock that a test moves. Begins at the machine's time.
#[derive(Debug)]
pub struct ManualClock {
    wall_us: AtomicI64,
    steady_us: AtomicI64,
    ticks_since: Option<Instant>,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self {
            wall_us: AtomicI64::new(Timestamp::now().as_microsecond()),
            steady_us: AtomicI64::new(0),
            ticks_since: None,
        }
    }
}

impl ManualClock {
    /// Goes with tokio's time, too.
    pub fn ticking() -> Self {
        Self { ticks_since: Some(Instant::now()), ..Self::default() }
    }

    fn ticked(&self) -> Duration {
        self.ticks_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Time passes.
    pub fn advance(&self, span: Duration) {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        self.wall_us.fetch_add(micros, Ordering::SeqCst);
        self.steady_us.fetch_add(micros, Ordering::SeqCst);
    }

    /// The wall clock is set, by an administrator or by NTP. No time passes.
    pub fn jump(&self, by: SignedDuration) {
        self.wall_us.fetch_add(i64::try_from(by.as_micros()).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Clock {
    /// Goes with tokio's time from now on.
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
                later(wall.unwrap_or(Timestamp::MAX), manual.ticked())
            }
        }
    }

    /// The steady clock: how long it is since a moment that is the same for all callers of this
    /// process. It counts the time that the machine was suspended.
    pub fn steady(&self) -> Duration {
        match self {
            Self::System => Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default(),
            Self::Tokio { since, .. } => since.elapsed(),
            Self::Manual(manual) => {
                let steady = u64::try_from(manual.steady_us.load(Ordering::SeqCst)).unwrap_or_default();
                Duration::from_micros(steady) + manual.ticked()
            }
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
