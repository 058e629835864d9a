//! What a request must have to wake a paused sandbox: the token that its port asks for, an open port, and
//! a sandbox that traffic has not woken too often just before.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, Request, header};
use node::ports::Machine;
use node::{Record, SandboxId, Token};
use protocol::guest::{ENVD_PORT, INTERPRETER_PORT};
use protocol::headers::ACCESS_TOKEN;
use subtle::ConstantTimeEq;
use tokio::net::TcpStream;

use super::refusal::Refusal;
use super::signed;
use crate::content::Content;

/// Both ends are on this machine, and the kernel answers for a frozen process.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Wake-ups of one sandbox at once, and the time after which one more is allowed. A wake-up lasts for
/// minutes, so that only a sandbox that is paused by hand again and again comes near.
const BURST: f64 = 30.0;
const REFILL: Duration = Duration::from_secs(2);
/// Beyond this the sandboxes are forgotten that may be woken as often as a new one.
const MAX_SANDBOXES: usize = 10_000;

/// Whether a request may wake the sandbox. Returns the connection to its port if one could be made: a
/// frozen program's socket accepts, and the request goes on over it. `now` is in seconds.
pub(super) async fn check(
    record: &Record,
    frozen: Option<&dyn Machine>,
    target: &super::Target,
    request: &Request<Content>,
    known_peer: bool,
    now: i64,
) -> Result<Option<TcpStream>, Refusal> {
    if target.port == ENVD_PORT {
        return check_guest(record.access_token.as_ref(), request, now).map(|()| None);
    }
    let Some(machine) = frozen else { return Ok(None) };
    match tokio::time::timeout(DIAL_TIMEOUT, machine.dial(target.port)).await {
        Ok(Ok(stream)) => Ok(Some(stream)),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => match target.port {
            // The guest's own interpreter answers there.
            INTERPRETER_PORT if known_peer => Ok(None),
            INTERPRETER_PORT => check_guest(record.access_token.as_ref(), request, now).map(|()| None),
            _ => Err(Refusal::PortClosed),
        },
        // Unknown: the sandbox is waking or ending just now.
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// The guest refuses what has not its token; nothing of that is worth a wake-up.
fn check_guest(token: Option<&Token>, request: &Request<Content>, now: i64) -> Result<(), Refusal> {
    let Some(token) = token else { return Ok(()) };
    let headers = request.headers();
    match headers.get(ACCESS_TOKEN) {
        Some(given) if bool::from(given.as_bytes().ct_eq(token.reveal().as_bytes())) => Ok(()),
        Some(_) => Err(Refusal::AccessTokenMissing),
        None if signed::is_signed(request, token, now) => Ok(()),
        None if request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) => {
            Err(Refusal::Preflight)
        }
        // Needs no token of a running sandbox: this one is not running, and stays so.
        None if request.uri().path() == "/health" => Err(Refusal::Asleep),
        None => Err(Refusal::AccessTokenMissing),
    }
}

/// How often traffic may wake a sandbox: a token bucket each.
#[derive(Default)]
pub(super) struct WakeLimit {
    buckets: Mutex<HashMap<SandboxId, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn level(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.at).as_secs_f64() / REFILL.as_secs_f64();
        (self.level + refilled).min(BURST)
    }
}

impl WakeLimit {
    fn buckets(&self) -> MutexGuard<'_, HashMap<SandboxId, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn allows(&self, id: &SandboxId) -> bool {
        self.allows_at(id, Instant::now())
    }

    /// Counts a wake-up. Requests that found the sandbox being woken count nothing.
    pub(super) fn count(&self, id: &SandboxId) {
        self.count_at(id, Instant::now());
    }

    fn allows_at(&self, id: &SandboxId, now: Instant) -> bool {
        self.buckets().get(id).is_none_or(|bucket| bucket.level(now) >= 1.0)
    }

    fn count_at(&self, id: &SandboxId, now: Instant) {
        let mut buckets = self.buckets();
        if buckets.len() >= MAX_SANDBOXES {
            buckets.retain(|_, bucket| bucket.level(now) < BURST);
        }
        let level = buckets.get(id).map_or(BURST, |bucket| bucket.level(now));
        buckets.insert(id.clone(), Bucket { level: (level - 1.0).max(0.0), at: now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_woken_so_often_and_no_more_and_others_do_not_pay() {
        let (limit, start) = (WakeLimit::default(), Instant::now());
        let (one, two) = ("ione".parse().expect("an ID"), "itwo".parse().expect("an ID"));
        for _ in 0..30 {
            assert!(limit.allows_at(&one, start));
            limit.count_at(&one, start);
        }
        assert!(!limit.allows_at(&one, start) && limit.allows_at(&two, start));
        assert!(limit.allows_at(&one, start + REFILL));
    }
}
