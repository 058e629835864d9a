//! Waits for a condition with a deadline, and the number of repeats of long tests.

use std::fmt::Display;
use std::panic::Location;
use std::time::{Duration, Instant};

/// A deadline for what a machine under load does within seconds.
pub const SOON: Duration = Duration::from_secs(60);

/// Between two checks of the condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What a check of a condition returns: whether it holds, or what was found.
pub trait WaitCondition {
    type Found;

    fn found(self) -> Option<Self::Found>;
}

impl WaitCondition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> WaitCondition for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Polls `check` until it returns true or a value. Panics at the deadline, and names the condition.
#[track_caller]
pub fn eventually<C: WaitCondition>(what: impl Display, within: Duration, mut check: impl FnMut() -> C) -> C::Found {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = check().found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// As [`eventually`], for tests that must let other tasks run.
#[track_caller]
pub fn eventually_async<C: WaitCondition>(
    what: impl Display,
    within: Duration,
    mut check: impl AsyncFnMut() -> C,
) -> impl Future<Output = C::Found> {
    // The future is polled elsewhere: the caller's location is known only here.
    let place = Location::caller();
    async move {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = check().await.found() {
                return found;
            }
            assert!(Instant::now() < deadline, "not within {within:?}: {what} ({place})");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// How often long tests repeat: `long` times under `./dev soak`, `short` times otherwise.
pub fn repeats(short: usize, long: usize) -> usize {
    if std::env::var_os("SANDBAR_SOAK").is_some() { long } else { short }
}
