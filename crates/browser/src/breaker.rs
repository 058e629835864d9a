//! The circuit breaker: after some failures in a row for one origin, answers come at once for a while.
//!
//! It counts by origin, so that one sandbox whose server is down does not silence the others. Time is passed in.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::error::CaptureError;

const FAILURES: u32 = 3;
const OPEN_FOR: Duration = Duration::from_secs(60);
/// A failure this old says nothing about now. It also bounds what is remembered of sandboxes that are gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Breakers(HashMap<String, Failures>);

#[derive(Debug)]
struct Failures {
    count: u32,
    last: String,
    at: Instant,
}

impl Breakers {
    /// Refuses while the circuit of `origin` is open. When the time is over one attempt passes; if it fails, too, the circuit is open
    /// again.
    pub(crate) fn check(&self, origin: &str, now: Instant) -> Result<(), CaptureError> {
        let Some(failures) = self.0.get(origin) else { return Ok(()) };
        let retry_in = (failures.at + OPEN_FOR).saturating_duration_since(now);
        if failures.count < FAILURES || retry_in.is_zero() {
            return Ok(());
        }
        Err(CaptureError::CircuitOpen {
            origin: origin.to_owned(),
            failures: failures.count,
            retry_in,
            last: failures.last.clone(),
        })
    }

    pub(crate) fn succeeded(&mut self, origin: &str) {
        self.0.remove(origin);
    }

    pub(crate) fn failed(&mut self, origin: &str, error: &CaptureError, now: Instant) {
        self.0.retain(|_, failures| now.saturating_duration_since(failures.at) < FORGOTTEN_AFTER);
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
    fn three_failures_in_a_row_open_it_for_a_minute() {
        let start = Instant::now();
        let mut breakers = Breakers::default();
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            assert!(breakers.check("a", now).is_ok());
            breakers.failed("a", &CaptureError::PageCrashed, now);
        }
        let refused = breakers.check("a", start + Duration::from_secs(12));
        assert!(
            matches!(&refused, Err(CaptureError::CircuitOpen { failures: 3, retry_in, .. }) if retry_in.as_secs() == 50),
            "{refused:?}"
        );
        assert!(breakers.check("b", start).is_ok(), "another origin is not concerned");

        let later = start + Duration::from_secs(62);
        assert!(breakers.check("a", later).is_ok());
        breakers.failed("a", &CaptureError::PageCrashed, later);
        assert!(breakers.check("a", later).is_err(), "one more failure opens it again");
        breakers.succeeded("a");
        assert!(breakers.check("a", later).is_ok());
    }

    #[test]
    fn a_success_between_starts_the_count_anew() {
        let now = Instant::now();
        let mut breakers = Breakers::default();
        for _ in 0..5 {
            breakers.failed("a", &CaptureError::BrowserDied, now);
            breakers.failed("a", &CaptureError::BrowserDied, now);
            breakers.succeeded("a");
        }
        assert!(breakers.check("a", now).is_ok());
    }
}
