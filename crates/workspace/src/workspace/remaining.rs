//! Computes how long a sandbox still lives from the provider's answers. Pure, except for the
//! remembered last answer.
//!
//! The provider's times are of its own clock, so only differences count: the end minus the `Date`
//! of the response. That date may be wrong too: servers cache it, and clocks are set. So it is used
//! only if it is plausible and has advanced with the monotonic clock of this machine since the last
//! answer.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sdk::SandboxId;

use super::core::WorkspaceCore;
use crate::provider::Inspected;

/// The minimum for a running sandbox whose answer is implausible: soon enough for the supervisor to
/// extend it.
const LEAST: Duration = Duration::from_secs(60);
/// A `Date` has whole seconds, and responses take time.
const ACCURACY: SignedDuration = SignedDuration::from_secs(5);

/// The times in a provider's answer.
#[derive(Debug, Clone, Copy)]
struct Answer {
    start: Option<Timestamp>,
    end: Timestamp,
    date: Option<Timestamp>,
    /// By the monotonic clock of this machine.
    at: Duration,
}

/// The last answer, and the remaining lifetime derived from it.
#[derive(Debug, Clone)]
pub(super) struct LastAnswer {
    sandbox: SandboxId,
    answer: Answer,
    remaining: Duration,
}

impl WorkspaceCore {
    /// How long a running sandbox lives without an extension.
    pub(super) fn remaining(&self, found: &Inspected) -> Duration {
        let Some(end) = found.ends_at else { return LEAST };
        let (sandbox, clock) = (found.sandbox.id(), &self.settings().clock);
        let answer = Answer { start: found.started_at, end, date: found.answered_at, at: clock.monotonic() };
        let mut state = self.state();
        let last = state.last_answer.as_ref().filter(|last| last.sandbox == *sandbox);
        let remaining = remaining(&answer, last.map(|last| (&last.answer, last.remaining)), clock.now());
        state.last_answer = Some(LastAnswer { sandbox: sandbox.clone(), answer, remaining });
        remaining
    }
}

fn remaining(answer: &Answer, last: Option<(&Answer, Duration)>, now: Timestamp) -> Duration {
    let whole = answer.start.map_or(SignedDuration::MAX, |start| answer.end.duration_since(start));
    // The `Date` omits the fraction of its second.
    let by_date = answer.date.map(|date| answer.end.duration_since(date) - SignedDuration::from_secs(1));
    let can_be_true = |left: &SignedDuration| left.is_positive() && *left <= whole.saturating_add(ACCURACY);
    let believed = by_date.filter(can_be_true);
    let left = match last {
        None => believed.or_else(|| Some(answer.end.duration_since(now)).filter(can_be_true)),
        Some((before, left)) => {
            let passed = span(answer.at.saturating_sub(before.at));
            let went_on = match (before.date, answer.date) {
                (Some(before), Some(date)) => date.duration_since(before).saturating_add(ACCURACY) >= passed,
                _ => false,
            };
            let moved = answer.end.duration_since(before.end);
            let expected = span(left).saturating_sub(passed).saturating_add(moved);
            believed.filter(|_| went_on).or(Some(expected))
        }
    };
    left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default().max(LEAST.min(shortest(whole)))
}

/// The minimum for a short-lived sandbox is lower.
fn shortest(whole: SignedDuration) -> Duration {
    Duration::try_from(whole).unwrap_or_default() / 4
}

fn span(span: Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    /// The answer for a sandbox of one hour that started at 0 of the provider's clock.
    fn answer(date: i64, monotonic: u64) -> Answer {
        Answer { start: Some(at(0)), end: at(3600), date: Some(at(date)), at: Duration::from_secs(monotonic) }
    }

    fn first(date: i64, now: i64) -> u64 {
        remaining(&answer(date, 0), None, at(now)).as_secs()
    }

    #[test]
    fn a_plausible_date_of_the_provider_counts() {
        assert_eq!(first(600, 99_999), 2999);
        assert_eq!(first(4000, 600), 3000, "a date after the end is none");
        assert_eq!(first(-4000, 600), 3000, "nor is one long before the start");
        assert_eq!(first(4000, -4000), LEAST.as_secs(), "nor is this machine's clock");
    }

    #[test]
    fn a_date_that_does_not_advance_is_ignored() {
        let before = answer(600, 100);
        let then = |date: i64, monotonic: u64| {
            remaining(&answer(date, monotonic), Some((&before, Duration::from_secs(2999))), at(0))
        };
        assert_eq!(then(1200, 700).as_secs(), 2399, "it went on");
        assert_eq!(then(600, 700).as_secs(), 2399, "it stood still for ten minutes");
        assert_eq!(then(0, 700).as_secs(), 2399, "it was set back");
        assert_eq!(then(3000, 700).as_secs(), 599, "the provider's clock was set ahead: its end comes sooner");
        let longer = Answer { end: at(7200), ..answer(600, 700) };
        let extended = remaining(&longer, Some((&before, Duration::from_secs(2999))), at(0));
        assert_eq!(extended.as_secs(), 2399 + 3600, "it was extended meanwhile");
    }
}
