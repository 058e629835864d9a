//! Retries: which requests are retryable, and the backoff.

use std::time::Duration;

use http::StatusCode;

/// Retries after the first attempt.
pub(super) const MAX_RETRIES: u32 = 3;
/// No connection attempt starts later than this after the first: an unreachable service is reported
/// within 10 s.
pub(super) const CONNECT_BUDGET: Duration = Duration::from_secs(5);
/// Timeout of one connection attempt, including DNS and TLS.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Upper bound of the backoff, also of `retry-after`.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Whether processing a request twice has the same effect as once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idempotency {
    /// It reads, sets an absolute state, or carries an idempotency key.
    Idempotent,
    /// Each processing has an effect: retried only if it was certainly not processed.
    NotIdempotent,
}

/// Whether a response's status and headers permit a retry.
pub(super) fn is_retryable(status: StatusCode, should_retry: Option<bool>, idempotency: Idempotency) -> bool {
    match (should_retry, status.as_u16()) {
        (Some(should_retry), _) => should_retry,
        // Rejected before processing.
        (None, 429) => true,
        (None, 502..=504) => idempotency == Idempotency::Idempotent,
        _ => false,
    }
}

/// The backoff before retry `attempt` (from 1): `retry-after` if given, else exponential with
/// jitter.
pub(super) fn backoff(attempt: u32, retry_after: Option<Duration>) -> Duration {
    let doubled = INITIAL_BACKOFF.saturating_mul(1 << attempt.saturating_sub(1).min(10));
    let jittered = doubled.mul_f64(rand::random_range(0.5..1.0));
    retry_after.unwrap_or(jittered).min(MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_requests_are_retried() {
        use Idempotency::{Idempotent, NotIdempotent};
        for (status, should_retry, idempotency, expected) in [
            (503, None, Idempotent, true),
            (503, None, NotIdempotent, false),
            (503, Some(true), NotIdempotent, true),
            (503, Some(false), Idempotent, false),
            (429, None, NotIdempotent, true),
            (429, Some(false), NotIdempotent, false),
            (500, None, Idempotent, false),
            (404, None, Idempotent, false),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            assert_eq!(
                is_retryable(status, should_retry, idempotency),
                expected,
                "{status} {should_retry:?} {idempotency:?}"
            );
        }
    }

    #[test]
    fn backoff_grows_with_jitter_and_is_bounded() {
        for attempt in 1..40 {
            let got = backoff(attempt, None);
            assert!(got >= INITIAL_BACKOFF / 2 && got <= MAX_BACKOFF, "{attempt}: {got:?}");
        }
        assert_eq!(backoff(1, Some(Duration::from_secs(2))), Duration::from_secs(2));
        assert_eq!(backoff(1, Some(Duration::from_secs(999))), MAX_BACKOFF);
    }
}
