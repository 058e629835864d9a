//! Conditions for traffic to resume a paused sandbox: the token that its port requires, an open
//! port, and a limit on how often traffic resumed it.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use http::{Method, Request, header};
use node::Machine;
use node::{Record, SandboxId, Token};
use parking_lot::{Mutex, MutexGuard};
use protocol::guest::{ENVD_PORT, INTERPRETER_PORT};
use protocol::headers::ACCESS_TOKEN;
use subtle::ConstantTimeEq;
use tokio::net::TcpStream;

use super::refusal::Refusal;
use super::signed;
use crate::content::Content;

/// Both ends are on this machine, and the kernel accepts for a frozen process.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Resumes of one sandbox at once, and the time after which one more is allowed. A resume lasts for
/// minutes, so only a sandbox that is repeatedly paused by calls comes near the limit.
const BURST: f64 = 30.0;
const REFILL_INTERVAL: Duration = Duration::from_secs(2);
/// Beyond this number, sandboxes with a full bucket are dropped.
const MAX_SANDBOXES: usize = 10_000;

/// Checks whether a request may resume the sandbox. Returns the connection to its port if one could
/// be opened: the kernel accepts for a frozen program, and the request then uses this connection.
/// `now` is in seconds.
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
            // The guest's own interpreter serves this port.
            INTERPRETER_PORT if known_peer => Ok(None),
            INTERPRETER_PORT => check_guest(record.access_token.as_ref(), request, now).map(|()| None),
            _ => Err(Refusal::PortClosed),
        },
        // Unknown: the sandbox is just being resumed or ended.
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// The guest refuses requests without its token, so they do not resume it.
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
        // A running sandbox answers this without a token; this one is paused, and stays so.
        None if request.uri().path() == "/health" => Err(Refusal::Paused),
        None => Err(Refusal::AccessTokenMissing),
    }
}

/// Limits how often traffic may resume a sandbox, with a token bucket per sandbox.
#[derive(Default)]
pub(super) struct ResumeLimit {
    buckets: Mutex<HashMap<SandboxId, Bucket>>,
}

#[derive(Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn level(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.at).as_secs_f64() / REFILL_INTERVAL.as_secs_f64();
        (self.level + refilled).min(BURST)
    }
}

impl ResumeLimit {
    fn buckets(&self) -> MutexGuard<'_, HashMap<SandboxId, Bucket>> {
        self.buckets.lock()
    }

    pub(super) fn allows(&self, id: &SandboxId) -> bool {
        self.allows_at(id, Instant::now())
    }

    /// Counts a resume. Requests that found the sandbox being resumed do not count.
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
    fn resumes_by_traffic_are_limited_per_sandbox() {
        let (limit, start) = (ResumeLimit::default(), Instant::now());
        let (one, two) = ("ione".parse().expect("an ID"), "itwo".parse().expect("an ID"));
        for _ in 0..30 {
            assert!(limit.allows_at(&one, start));
            limit.count_at(&one, start);
        }
        assert!(!limit.allows_at(&one, start) && limit.allows_at(&two, start));
        assert!(limit.allows_at(&one, start + REFILL_INTERVAL));
    }
}
