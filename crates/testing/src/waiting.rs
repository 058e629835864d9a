//! Waits for a condition with a deadline, and the number of repeats of long tests.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Between two checks of the condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls `ready` until it returns a value. Panics at the deadline, and names the condition.
#[track_caller]
pub fn eventually<T>(what: impl Display, within: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// As [`eventually`], for tests that must let other tasks run.
#[track_caller]
pub fn eventually_async<T, F: Future<Output = Option<T>>>(
    what: impl Display,
    within: Duration,
    mut ready: impl FnMut() -> F,
) -> impl Future<Output = T> {
    // The future is polled elsewhere: the caller's location is known only here.
    let place = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = ready().await {
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
