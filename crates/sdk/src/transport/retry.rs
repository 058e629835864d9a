//! When a request may be sent again, and after how long.

use std::time::Duration;

use http::StatusCode;

/// Further tries after the first.
pub(super) const RETRIES: u32 = 3;
/// No further try to connect begins later than this after the first: an unreachable service is reported within 10 s.
pub(super) const CONNECT_BUDGET: Duration = Duration::from_secs(5);
/// For one try to connect, names and TLS included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A server that asks for more is asked again after this.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Whether doing a request twice is the same as doing it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It reads, or it sets what is set already, or it carries an idempotency key.
    Harmless,
    /// A second one would act a second time: only what was certainly not acted upon is sent again.
    Never,
}

/// What an answer's status and headers say about sending the request again.
pub(super) fn may_repeat(status: StatusCode, should_retry: Option<bool>, repeat: Repeat) -> bool {
    match (should_retry, status.as_u16()) {
        (Some(told), _) => told,
        // Turned away at the door: nothing was done.
        (None, 429) => true,
        (None, 502..=504) => repeat == Repeat::Harmless,
        _ => false,
    }
}

/// The wait before try `attempt` (from 1): what the server asked for, else doubling with jitter.
pub(super) fn wait(attempt: u32, retry_after: Option<Duration>) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << attempt.saturating_sub(1).min(10));
    let jittered = doubled.mul_f64(rand::random_range(0.5..1.0));
    retry_after.unwrap_or(jittered).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_safe_is_repeated() {
        use Repeat::{Harmless, Never};
        for (status, told, repeat, expected) in [
            (503, None, Harmless, true),
            (503, None, Never, false),
            (503, Some(true), Never, true),
            (503, Some(false), Harmless, false),
            (429, None, Never, true),
            (429, Some(false), Never, false),
            (500, None, Harmless, false),
            (404, None, Harmless, false),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(may_repeat(status, told, repeat), expected, "{status} {told:?} {repeat:?}");
        }
    }

    #[test]
    fn waits_grow_are_jittered_and_end() {
        for attempt in 1..40 {
            let got = wait(attempt, None);
            assert!(got >= FIRST_WAIT / 2 && got <= LONGEST_WAIT, "{attempt}: {got:?}");
        }
        assert_eq!(wait(1, Some(Duration::from_secs(2))), Duration::from_secs(2));
        assert_eq!(wait(1, Some(Duration::from_secs(999))), LONGEST_WAIT);
    }
}
