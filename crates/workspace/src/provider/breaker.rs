//! When a provider is left alone: after failures in a row it is not asked for a while, then one request probes it.
//!
//! ```text
//! closed --(3 failures in a row)--> open --(its time is over)--> half-open: one probe
//!    ^                                ^                             |          |
//!    |                                +------- it fails, twice as long -------+
//!    +---------------------------- it succeeds --------------------------------+
//! ```
//! Pure: the time is passed in, and the state is data, because every command of the program is a process of its own
//! and they share what they learned through the records.

use std::time::Duration;

use jiff::Timestamp;

/// Failures in a row that open it.
const FAILURES: u32 = 3;
const FIRST_REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(300);
/// A probe that has not come back by then has died with its process. A create takes at most a minute.
const PROBE_TIME: Duration = Duration::from_secs(90);

/// What is known of a provider's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Breaker {
    #[default]
    Healthy,
    /// Fails, but not yet often enough.
    Failing { failures: u32 },
    /// Left alone until then.
    Open { until: Timestamp, rest: Duration },
    /// One request is finding out; nobody else may until then.
    Probing { until: Timestamp, rest: Duration },
}

/// Whether a request may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Allowed,
    /// This one finds out whether the provider is well again; the new state must be known before it is sent.
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
            Self::Open { rest, .. } | Self::Probing { rest, .. } => {
                Admission::Probe(Self::Probing { until: later(now, PROBE_TIME), rest })
            }
        }
    }

    /// After an answer, whatever it said: the service is there.
    #[must_use]
    pub fn succeeded(self) -> Self {
        Self::Healthy
    }

    /// After the service itself was the trouble.
    #[must_use]
    pub fn failed(self, now: Timestamp) -> Self {
        let open = |rest: Duration| Self::Open { until: later(now, rest), rest };
        match self {
            Self::Healthy => Self::Failing { failures: 1 },
            Self::Failing { failures } if failures + 1 < FAILURES => Self::Failing { failures: failures + 1 },
            Self::Failing { .. } => open(FIRST_REST),
            Self::Probing { rest, .. } => open((rest * 2).min(LONGEST_REST)),
            // One that was let in before it opened: nothing new.
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
        (0..times).fold(Breaker::Healthy, |breaker, _| breaker.failed(now))
    }

    #[test]
    fn it_opens_after_three_failures_in_a_row() {
        assert_eq!(failed_times(2, at(0)).admit(at(0)), Admission::Allowed);
        assert_eq!(failed_times(2, at(0)).succeeded().failed(at(0)), Breaker::Failing { failures: 1 });
        assert_eq!(failed_times(3, at(0)).admit(at(29)), Admission::Refused { until: at(30) });
        assert_eq!(failed_times(4, at(0)), failed_times(3, at(0)));
    }

    #[test]
    fn after_its_rest_one_probe_decides() {
        let Admission::Probe(probing) = failed_times(3, at(0)).admit(at(30)) else { panic!("its time is over") };
        assert_eq!(probing.admit(at(31)), Admission::Refused { until: at(120) });
        assert_eq!(probing.succeeded().admit(at(31)), Admission::Allowed);
        let again = probing.failed(at(31));
        assert_eq!(again.admit(at(90)), Admission::Refused { until: at(91) });
        assert!(matches!(again.admit(at(91)), Admission::Probe(_)));
    }

    #[test]
    fn a_probe_that_died_does_not_close_the_door_for_good() {
        let Admission::Probe(probing) = failed_times(3, at(0)).admit(at(30)) else { panic!("its time is over") };
        assert!(matches!(probing.admit(at(120)), Admission::Probe(_)));
    }

    proptest! {
        #[test]
        fn whatever_happens_it_lets_somebody_in_within_five_minutes(steps in prop::collection::vec((any::<bool>(), 0i64..400), 0..60)) {
            let mut now = at(0);
            let mut breaker = Breaker::Healthy;
            for (good, wait) in steps {
                now = later(now, Duration::from_secs(wait.unsigned_abs()));
                match breaker.admit(now) {
                    Admission::Refused { until } => {
                        prop_assert!(until > now && until <= later(now, LONGEST_REST));
                        continue;
                    }
                    Admission::Probe(next) => breaker = next,
                    Admission::Allowed => {}
                }
                breaker = if good { breaker.succeeded() } else { breaker.failed(now) };
            }
            let refused = matches!(breaker.admit(later(now, LONGEST_REST)), Admission::Refused { .. });
            prop_assert!(!refused);
        }
    }
}
