//! What the system tests share: a real server in a directory of its own, and a small blocking client for it.
//!
//! The client speaks plain HTTP/1.1 and Connect with JSON, so that a test sees the bytes a program would see.

pub(crate) mod cutter;
pub(crate) mod holdings;
pub(crate) mod http;
pub(crate) mod internet;
pub(crate) mod sandbox;
pub(crate) mod server;

pub(crate) use cutter::Cutter;
pub(crate) use holdings::Holdings;
pub(crate) use sandbox::{Output, Sandbox};
pub(crate) use server::Server;

use std::time::{Duration, Instant};

/// How often the long repeats run: all of them under `./dev soak`, a few otherwise.
pub(crate) fn repeats(short: usize, long: usize) -> usize {
    if std::env::var_os("SANDBAR_SOAK").is_some() { long } else { short }
}

/// Waits until `ready` gives something; the wait has a deadline and names what it waited for.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, within: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
