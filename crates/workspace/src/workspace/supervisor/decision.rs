//! Decides what is due for a sandbox, by the clock. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::settings::Settings;

/// The state of a running sandbox. All times are of our clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// By a clock that does not jump.
    pub(super) now: Timestamp,
    /// By the wall clock, which can be set.
    pub(super) wall: Timestamp,
    /// Of this run.
    pub(super) started_at: Timestamp,
    pub(super) ends_at: Timestamp,
    /// When the provider was last asked.
    pub(super) seen_at: Timestamp,
    /// The latest end that the plan allows.
    pub(super) latest: Option<Timestamp>,
    /// The lifetime of the workspace itself.
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// When a rotation last failed.
    pub(super) failed_at: Option<Timestamp>,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing before then.
    Wait(Timestamp),
    /// Inspect the sandbox at its provider.
    Inspect,
    /// Extend it to this long from now.
    Extend(Duration),
    Rotate,
    /// Its end is near and there is no successor: pause it.
    Pause,
    /// The workspace's lifetime is over.
    Stop,
}

/// At most a third of a lifetime, so that short-lived sandboxes are not rotated continuously.
fn part(from: Timestamp, until: Timestamp, most: Duration) -> Duration {
    most.min(Duration::try_from(until.duration_since(from)).unwrap_or_default() / 3)
}

/// When a workspace is stopped, with time to save its files.
pub(super) fn stop_at(created_at: Timestamp, expires_at: Timestamp, settings: &Settings) -> Timestamp {
    earlier(expires_at, part(created_at, expires_at, settings.rotate_before))
}

/// When a rotation starts, and when only a pause is left. The rotation gets most of the time before
/// the sandbox's end, also where that is short.
fn window(started_at: Timestamp, ends_at: Timestamp, settings: &Settings) -> (Timestamp, Timestamp) {
    let window = part(started_at, ends_at, settings.rotate_before);
    (earlier(ends_at, window), earlier(ends_at, settings.last_resort.min(window / 4)))
}

/// The timeout of a rotation or a stop: it leaves time for a pause when the store stalls.
pub(super) fn action_timeout(facts: &Facts, settings: &Settings) -> Duration {
    let Facts { now, started_at, ends_at, .. } = *facts;
    let until = |moment: Timestamp| Duration::try_from(moment.duration_since(now)).unwrap_or_default();
    let (_, last_resort) = window(started_at, ends_at, settings);
    until(last_resort).max(until(ends_at) / 3)
}

pub(super) fn due(facts: &Facts, settings: &Settings) -> Due {
    let Facts { now, wall, started_at, ends_at, seen_at, latest, created_at, expires_at, failed_at } = *facts;
    let stop_at = stop_at(created_at, expires_at, settings);
    // A clock that was set ahead ends no workspace early.
    if now.min(wall) >= stop_at {
        return Due::Stop;
    }
    let stop_at = if now >= stop_at { Timestamp::MAX } else { stop_at };
    let inspect_at = later(seen_at, settings.inspect_interval);
    if now >= inspect_at {
        return Due::Inspect;
    }
    let latest = latest.map_or(expires_at, |latest| latest.min(expires_at));
    let extend_at = earlier(ends_at, settings.extend_under);
    // Ignores an extension of less than a second.
    if latest > later(ends_at, Duration::from_secs(1)) {
        if now >= extend_at {
            return Due::Extend(Duration::try_from(latest.duration_since(now)).unwrap_or_default());
        }
        return Due::Wait(extend_at.min(inspect_at).min(stop_at));
    }
    if ends_at >= expires_at {
        return Due::Wait(inspect_at.min(stop_at));
    }
    let (rotate_at, last_resort) = window(started_at, ends_at, settings);
    if now < rotate_at {
        return Due::Wait(rotate_at.min(inspect_at).min(stop_at));
    }
    let Some(failed_at) = failed_at else { return Due::Rotate };
    if now >= last_resort {
        return Due::Pause;
    }
    let again = later(failed_at, settings.rotate_backoff);
    if now >= again { Due::Rotate } else { Due::Wait(again.min(last_resort).min(inspect_at).min(stop_at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    /// A sandbox that started at 0 in a workspace of 30 days.
    fn facts(now: i64, ends_at: i64, latest: Option<i64>) -> Facts {
        Facts {
            now: at(now),
            wall: at(now),
            started_at: at(0),
            ends_at: at(ends_at),
            seen_at: at(now),
            latest: latest.map(at),
            created_at: at(0),
            expires_at: at(30 * DAY),
            failed_at: None,
        }
    }

    #[track_caller]
    fn check(facts: Facts, expected: Due) {
        assert_eq!(due(&facts, &Settings::default()), expected, "{facts:?}");
    }

    #[test]
    fn nothing_is_due_while_there_is_time() {
        check(facts(0, HOUR, None), Due::Wait(at(60)));
        check(facts(3250, HOUR, None), Due::Wait(at(3300)));
        check(Facts { seen_at: at(1000), ..facts(1059, HOUR, None) }, Due::Wait(at(1060)));
        check(Facts { seen_at: at(1000), ..facts(1060, HOUR, None) }, Due::Inspect);
    }

    #[test]
    fn a_sandbox_is_extended_as_far_as_allowed() {
        check(facts(3300, HOUR, None), Due::Extend(Duration::from_secs(30 * 24 * 3600 - 3300)));
        check(facts(3300, HOUR, Some(DAY)), Due::Extend(Duration::from_secs(24 * 3600 - 3300)));
    }

    #[test]
    fn rotation_starts_five_minutes_before_a_fixed_end() {
        check(facts(3299, HOUR, Some(HOUR)), Due::Wait(at(3300)));
        check(facts(3300, HOUR, Some(HOUR)), Due::Rotate);
        let failed = |now: i64, failed: i64| Facts { failed_at: Some(at(failed)), ..facts(now, HOUR, Some(HOUR)) };
        check(failed(3310, 3300), Due::Wait(at(3315)));
        check(failed(3315, 3300), Due::Rotate);
        check(failed(3540, 3530), Due::Pause);
    }

    #[test]
    fn a_stalled_rotation_leaves_time_for_a_pause() {
        let action_timeout = |now| action_timeout(&facts(now, HOUR, Some(HOUR)), &Settings::default()).as_secs();
        assert_eq!((action_timeout(3300), action_timeout(3500), action_timeout(3570)), (240, 40, 10));
    }

    #[test]
    fn a_short_life_is_used_for_two_thirds() {
        check(facts(0, 60, Some(60)), Due::Wait(at(40)));
        check(facts(40, 60, Some(60)), Due::Rotate);
        // The rotation gets most of the rest.
        assert_eq!(action_timeout(&facts(40, 60, Some(60)), &Settings::default()).as_secs(), 15);
        let failed = |now: i64, failed: i64| Facts { failed_at: Some(at(failed)), ..facts(now, 60, Some(60)) };
        check(failed(43, 43), Due::Wait(at(55)));
        check(failed(55, 43), Due::Pause);
    }

    #[test]
    fn the_workspace_stops_at_its_own_end() {
        let last = 30 * DAY;
        check(facts(last - 300, last, None), Due::Stop);
        check(facts(last - 301, last, None), Due::Wait(at(last - 300)));
        // Only if both clocks agree.
        check(Facts { wall: at(last - 301), ..facts(last - 300, last, None) }, Due::Wait(at(last - 240)));
        check(Facts { wall: at(last), ..facts(last - 400, last, None) }, Due::Wait(at(last - 340)));
        // Shortly before the stop, a rotation is still due when the sandbox ends earlier.
        check(facts(last - 400, last - 350, Some(last - 350)), Due::Rotate);
    }
}
