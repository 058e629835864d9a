//! Circuit breaker per provider: after consecutive failures no request is sent for a while, then
//! one request probes it.
//!
//! ```text
//! closed --(3 failures in a row)--> open --(backoff over)--> half-open: one probe
//!    ^                               ^                         |          |
//!    |                               +-- fails: double backoff +          |
//!    +---------------------------------------- succeeds ------------------+
//! ```
//! Pure: the time is passed in, and the state is data. Every command of the program is a process of
//! its own, and all share the state through the records.

use std::time::Duration;

use jiff::Timestamp;

/// Consecutive failures that open the breaker.
const FAILURES: u32 = 3;
const FIRST_BACKOFF: Duration = Duration::from_secs(30);
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// A probe without a result by then died with its process. A create takes at most a minute.
const PROBE_TIMEOUT: Duration = Duration::from_secs(90);

/// The health of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Breaker {
    #[default]
    Healthy,
    /// It fails, but not yet often enough to open.
    Failing { failures: u32 },
    /// No requests until then.
    Open { until: Timestamp, backoff: Duration },
    /// One request is probing; no others until then.
    Probing { until: Timestamp, backoff: Duration },
}

/// Whether a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Allowed,
    /// This request is the probe; the caller records the new state before it sends.
    Probe(Breaker),
    Refused {
        until: Timestamp,
    },
}

impl Breaker {
    pub fn admit(self, now: Timestamp) -> Admission {
        match self {
            Self::Healthy | Self::Failing { .. } => Admission::Allowed,
            Self::Open { until, .. } | Self::Probing { until, .. } if now < until => Admission::Refused { until },
            Self::Open { backoff, .. } | Self::Probing { backoff, .. } => {
                Admission::Probe(Self::Probing { until: later(now, PROBE_TIMEOUT), backoff })
            }
        }
    }

    /// After any response: the service is reachable.
    #[must_use]
    pub fn after_success(self) -> Self {
        Self::Healthy
    }

    /// After a failure of the service itself.
    #[must_use]
    pub fn after_failure(self, now: Timestamp) -> Self {
        let open = |backoff: Duration| Self::Open { until: later(now, backoff), backoff };
        match self {
            Self::Healthy => Self::Failing { failures: 1 },
            Self::Failing { failures } if failures + 1 < FAILURES => Self::Failing { failures: failures + 1 },
            Self::Failing { .. } => open(FIRST_BACKOFF),
            Self::Probing { backoff, .. } => open((backoff * 2).min(MAX_BACKOFF)),
            // A request admitted before the breaker opened: nothing new.
            Self::Open { .. } => self,
        }
    }
}

fn later(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_add(time).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    fn failed_times(times: u32, now: Timestamp) -> Breaker {
        (0..times).fold(Breaker::Healthy, |breaker, _| breaker.after_failure(now))
    }

    #[test]
    fn three_consecutive_failures_open_it() {
        assert_eq!(failed_times(2, at(0)).admit(at(0)), Admission::Allowed);
        assert_eq!(failed_times(2, at(0)).after_success().after_failure(at(0)), Breaker::Failing { failures: 1 });
        assert_eq!(failed_times(3, at(0)).admit(at(29)), Admission::Refused { until: at(30) });
        assert_eq!(failed_times(4, at(0)), failed_times(3, at(0)));
    }

    #[test]
    fn one_probe_decides_after_the_backoff() {
        let Admission::Probe(probing) = failed_times(3, at(0)).admit(at(30)) else { panic!("its time is over") };
        assert_eq!(probing.admit(at(31)), Admission::Refused { until: at(120) });
        assert_eq!(probing.after_success().admit(at(31)), Admission::Allowed);
        let again = probing.after_failure(at(31));
        assert_eq!(again.admit(at(90)), Admission::Refused { until: at(91) });
        assert!(matches!(again.admit(at(91)), Admission::Probe(_)));
    }

    #[test]
    fn a_probe_that_died_is_replaced() {
        let Admission::Probe(probing) = failed_times(3, at(0)).admit(at(30)) else { panic!("its time is over") };
        assert!(matches!(probing.admit(at(120)), Admission::Probe(_)));
    }

    proptest! {
        #[test]
        fn a_request_is_admitted_within_five_minutes(steps in prop::collection::vec((any::<bool>(), 0i64..400), 0..60)) {
            let mut now = at(0);
            let mut breaker = Breaker::Healthy;
            for (good, wait) in steps {
                now = later(now, Duration::from_secs(wait.unsigned_abs()));
                match breaker.admit(now) {
                    Admission::Refused { until } => {
                        prop_assert!(until > now && until <= later(now, MAX_BACKOFF));
                        continue;
                    }
                    Admission::Probe(next) => breaker = next,
                    Admission::Allowed => {}
                }
                breaker = if good { breaker.after_success() } else { breaker.after_failure(now) };
            }
            let refused = matches!(breaker.admit(later(now, MAX_BACKOFF)), Admission::Refused { .. });
            prop_assert!(!refused);
        }
    }
}
