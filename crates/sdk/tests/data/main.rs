//! Commands, terminals, files and git against a real server; and what the client says when the way there is broken.

mod commands;
mod ends;
mod faults;
mod files;
mod git;
mod old;
#[path = "../support/proxy.rs"]
mod proxy;
mod pty;
#[path = "../support/mod.rs"]
mod support;
mod tls;

use std::time::{Duration, Instant};

/// Waits until `ready` gives something; the wait has a deadline and names what it waited for.
#[track_caller]
fn eventually<T, F: Future<Output = Option<T>>>(
    what: &'static str,
    within: Duration,
    mut ready: impl FnMut() -> F,
) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = ready().await {
                return found;
            }
            assert!(Instant::now() < deadline, "not within {within:?}: {what} ({place})");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
