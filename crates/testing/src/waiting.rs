//! Waiting for something that must happen, and how often long repeats run.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `ready` gives something; the wait has a deadline and names what it waited for.
#[track_caller]
pub fn eventually<T>(what: impl Display, within: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// [`eventually`] for tests that must let other tasks run.
#[track_caller]
pub fn eventually_async<T, F: Future<Output = Option<T>>>(
    what: impl Display,
    within: Duration,
    mut ready: impl FnMut() -> F,
) -> impl Future<Output = T> {
    // A future is polled from elsewhere: who waits is known only here.
    let place = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = ready().await {
                return found;
            }
            assert!(Instant::now() < deadline, "not within {within:?}: {what} ({place})");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// How often the long repeats run: all of them under `./dev soak`, a few otherwise.
pub fn repeats(short: usize, long: usize) -> usize {
    if std::env::var_os("SANDBAR_SOAK").is_some() { long } else { short }
}
