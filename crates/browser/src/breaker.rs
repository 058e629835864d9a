//! Circuit breaker: after consecutive failures for one origin, captures of it fail at once for a
//! while.
//!
//! It counts per origin, so that a sandbox whose server is down does not block the others. The
//! caller passes the time in.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::error::CaptureError;

const FAILURE_THRESHOLD: u32 = 3;
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// An older failure no longer counts. This also bounds the memory used for sandboxes that are gone.
const FAILURE_LIFETIME: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Breakers(HashMap<String, Failures>);

#[derive(Debug)]
struct Failures {
    count: u32,
    last: String,
    at: Instant,
}

impl Breakers {
    /// Refuses while the circuit of `origin` is open. Afterwards one attempt passes; if it fails,
    /// the circuit opens again.
    ///
    /// # Errors
    /// [`CaptureError::CircuitOpen`] with the time until the next attempt.
    pub(crate) fn check(&self, origin: &str, now: Instant) -> Result<(), CaptureError> {
        let Some(failures) = self.0.get(origin) else { return Ok(()) };
        let retry_in = (failures.at + OPEN_TIMEOUT).saturating_duration_since(now);
        if failures.count < FAILURE_THRESHOLD || retry_in.is_zero() {
            return Ok(());
        }
        Err(CaptureError::CircuitOpen {
            origin: origin.to_owned(),
            failures: failures.count,
            retry_in,
            last: failures.last.clone(),
        })
    }

    pub(crate) fn record_success(&mut self, origin: &str) {
        self.0.remove(origin);
    }

    pub(crate) fn record_failure(&mut self, origin: &str, error: &CaptureError, now: Instant) {
        self.0.retain(|_, failures| now.saturating_duration_since(failures.at) < FAILURE_LIFETIME);
        let failures =
            self.0.entry(origin.to_owned()).or_insert_with(|| Failures { count: 0, last: String::new(), at: now });
        failures.count += 1;
        failures.last = error.to_string();
        failures.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_consecutive_failures_open_the_circuit() {
        let start = Instant::now();
        let mut breakers = Breakers::default();
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            assert!(breakers.check("a", now).is_ok());
            breakers.record_failure("a", &CaptureError::PageCrashed, now);
        }
        let refused = breakers.check("a", start + Duration::from_secs(12));
        assert!(
            matches!(&refused, Err(CaptureError::CircuitOpen { failures: 3, retry_in, .. }) if retry_in.as_secs() == 50),
            "{refused:?}"
        );
        assert!(breakers.check("b", start).is_ok(), "another origin is not concerned");

        let later = start + Duration::from_secs(62);
        assert!(breakers.check("a", later).is_ok());
        breakers.record_failure("a", &CaptureError::PageCrashed, later);
        assert!(breakers.check("a", later).is_err(), "one more failure opens it again");
        breakers.record_success("a");
        assert!(breakers.check("a", later).is_ok());
    }

    #[test]
    fn success_resets_the_failure_count() {
        let now = Instant::now();
        let mut breakers = Breakers::default();
        for _ in 0..5 {
            breakers.record_failure("a", &CaptureError::BrowserDied, now);
            breakers.record_failure("a", &CaptureError::BrowserDied, now);
            breakers.record_success("a");
        }
        assert!(breakers.check("a", now).is_ok());
    }
}
