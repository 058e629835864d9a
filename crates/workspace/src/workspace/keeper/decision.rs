//! What is due for a sandbox, by the clock. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::settings::Settings;

/// What is known of a sandbox that runs. All times are of our clock.
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
    /// The plan's, beyond which nothing can be extended.
    pub(super) latest: Option<Timestamp>,
    /// The workspace's own.
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// When a rotation failed last.
    pub(super) failed_at: Option<Timestamp>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing before then.
    Wait(Timestamp),
    /// Ask the provider.
    Look,
    /// Let it live so long from now.
    Extend(Duration),
    Rotate,
    /// Its end is near and there is no successor: pause it.
    Pause,
    /// The workspace's time is over.
    Stop,
}

/// What lives only for a short while is not replaced all the time: at most a third of its life.
fn part(from: Timestamp, until: Timestamp, most: Duration) -> Duration {
    most.min(Duration::try_from(until.duration_since(from)).unwrap_or_default() / 3)
}

/// When a workspace of this life is stopped, with time to save its files.
pub(super) fn stop_at(created_at: Timestamp, expires_at: Timestamp, settings: &Settings) -> Timestamp {
    earlier(expires_at, part(created_at, expires_at, settings.rotate_before))
}

/// When a rotation begins, and when nothing but a pause is left. Most of the time between a rotation's beginning and the
/// sandbox's end is the rotation's, also where that is short.
fn window(started_at: Timestamp, ends_at: Timestamp, settings: &Settings) -> (Timestamp, Timestamp) {
    let window = part(started_at, ends_at, settings.rotate_before);
    (earlier(ends_at, window), earlier(ends_at, settings.last_resort.min(window / 4)))
}

/// How long a rotation may take, or a stop: what a stalling store leaves must be enough for a pause.
pub(super) fn patience(facts: &Facts, settings: &Settings) -> Duration {
    let Facts { now, started_at, ends_at, .. } = *facts;
    let until = |moment: Timestamp| Duration::try_from(moment.duration_since(now)).unwrap_or_default();
    let (_, last_resort) = window(started_at, ends_at, settings);
    until(last_resort).max(until(ends_at) / 3)
}

pub(super) fn due(facts: &Facts, settings: &Settings) -> Due {
    let Facts { now, wall, started_at, ends_at, seen_at, latest, created_at, expires_at, failed_at } = *facts;
    let stop_at = stop_at(created_at, expires_at, settings);
    // A clock that was set ends no workspace before its time.
    if now.min(wall) >= stop_at {
        return Due::Stop;
    }
    let stop_at = if now >= stop_at { Timestamp::MAX } else { stop_at };
    let look_at = later(seen_at, settings.look_every);
    if now >= look_at {
        return Due::Look;
    }
    let latest = latest.map_or(expires_at, |latest| latest.min(expires_at));
    let extend_at = earlier(ends_at, settings.extend_under);
    // An extension that gains next to nothing is none.
    if latest > later(ends_at, Duration::from_secs(1)) {
        if now >= extend_at {
            return Due::Extend(Duration::try_from(latest.duration_since(now)).unwrap_or_default());
        }
        return Due::Wait(extend_at.min(look_at).min(stop_at));
    }
    if ends_at >= expires_at {
        return Due::Wait(look_at.min(stop_at));
    }
    let (rotate_at, last_resort) = window(started_at, ends_at, settings);
    if now < rotate_at {
        return Due::Wait(rotate_at.min(look_at).min(stop_at));
    }
    let Some(failed_at) = failed_at else { return Due::Rotate };
    if now >= last_resort {
        return Due::Pause;
    }
    let again = later(failed_at, settings.rotate_again);
    if now >= again { Due::Rotate } else { Due::Wait(again.min(last_resort).min(look_at).min(stop_at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;
    const DAY: i64 = 24 * HOUR;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    /// A sandbox that began at 0 on a workspace of 30 days.
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
    fn nothing_is_sent_while_there_is_time() {
        check(facts(0, HOUR, None), Due::Wait(at(60)));
        check(facts(3250, HOUR, None), Due::Wait(at(3300)));
        check(Facts { seen_at: at(1000), ..facts(1059, HOUR, None) }, Due::Wait(at(1060)));
        check(Facts { seen_at: at(1000), ..facts(1060, HOUR, None) }, Due::Look);
    }

    #[test]
    fn under_five_minutes_it_is_extended_as_far_as_plan_and_workspace_allow() {
        check(facts(3300, HOUR, None), Due::Extend(Duration::from_secs(30 * 24 * 3600 - 3300)));
        check(facts(3300, HOUR, Some(DAY)), Due::Extend(Duration::from_secs(24 * 3600 - 3300)));
    }

    #[test]
    fn an_end_that_cannot_be_moved_is_met_five_minutes_before() {
        check(facts(3299, HOUR, Some(HOUR)), Due::Wait(at(3300)));
        check(facts(3300, HOUR, Some(HOUR)), Due::Rotate);
        let failed = |now: i64, failed: i64| Facts { failed_at: Some(at(failed)), ..facts(now, HOUR, Some(HOUR)) };
        check(failed(3310, 3300), Due::Wait(at(3315)));
        check(failed(3315, 3300), Due::Rotate);
        check(failed(3540, 3530), Due::Pause);
    }

    #[test]
    fn what_stalls_leaves_time_for_a_pause() {
        let patience = |now| patience(&facts(now, HOUR, Some(HOUR)), &Settings::default()).as_secs();
        assert_eq!((patience(3300), patience(3500), patience(3570)), (240, 40, 10));
    }

    #[test]
    fn a_short_life_is_used_for_two_thirds() {
        check(facts(0, 60, Some(60)), Due::Wait(at(40)));
        check(facts(40, 60, Some(60)), Due::Rotate);
        // Most of the rest is the rotation's.
        assert_eq!(patience(&facts(40, 60, Some(60)), &Settings::default()).as_secs(), 15);
        let failed = |now: i64, failed: i64| Facts { failed_at: Some(at(failed)), ..facts(now, 60, Some(60)) };
        check(failed(43, 43), Due::Wait(at(55)));
        check(failed(55, 43), Due::Pause);
    }

    #[test]
    fn the_workspaces_own_end_stops_it() {
        let last = 30 * DAY;
        check(facts(last - 300, last, None), Due::Stop);
        check(facts(last - 301, last, None), Due::Wait(at(last - 300)));
        // Only if both clocks say so.
        check(Facts { wall: at(last - 301), ..facts(last - 300, last, None) }, Due::Wait(at(last - 240)));
        check(Facts { wall: at(last), ..facts(last - 400, last, None) }, Due::Wait(at(last - 340)));
        // Rotating then would be in vain.
        check(facts(last - 400, last - 350, Some(last - 350)), Due::Rotate);
    }
}
