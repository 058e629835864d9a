//! Computes how long sandboxes ran from recorded intervals.
//!
//! Invariant: no moment of a sandbox counts twice. A crashed process may leave an interval open,
//! and its successor may open another that overlaps it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::months::Period;
use crate::records::Interval;

/// Each interval with the part of its time that counts, within `period` and until `now`. Where two
/// intervals of a sandbox overlap, the earlier one gets the time.
pub(crate) fn count_time(intervals: &[Interval], period: Period, now: Timestamp) -> Vec<(&Interval, Duration)> {
    let mut by_sandbox: BTreeMap<_, Vec<&Interval>> = BTreeMap::new();
    for interval in intervals {
        by_sandbox.entry((&interval.provider, &interval.sandbox)).or_default().push(interval);
    }
    let mut counted = Vec::with_capacity(intervals.len());
    for mut of_one in by_sandbox.into_values() {
        of_one.sort_by_key(|interval| (interval.started_at, interval.end_by(now)));
        let mut covered = period.from;
        for interval in of_one {
            let from = interval.started_at.max(covered);
            let until = interval.end_by(now).min(period.until);
            // Negative when an earlier interval covers all of it.
            let time = Duration::try_from(until.duration_since(from)).unwrap_or_default();
            covered = covered.max(until);
            counted.push((interval, time));
        }
    }
    counted
}

/// The total running time.
pub fn running_time(intervals: &[Interval], period: Period, now: Timestamp) -> Duration {
    count_time(intervals, period, now).into_iter().map(|(_, time)| time).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::{Payer, Size};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    fn interval(sandbox: u8, start: i64, until: i64, ended: Option<i64>) -> Interval {
        Interval {
            provider: "e2b".parse().expect("a name"),
            sandbox: format!("i{sandbox}").parse().expect("an id"),
            payer: Payer { project: "p".into(), job: None },
            size: Size::default(),
            started_at: at(start),
            until: at(until),
            ended_at: ended.map(at),
        }
    }

    #[track_caller]
    fn check(intervals: &[Interval], now: i64, expected: u64) {
        assert_eq!(running_time(intervals, Period::ALWAYS, at(now)), Duration::from_secs(expected));
    }

    #[test]
    fn an_interval_left_open_ends_with_its_sandbox() {
        check(&[interval(1, 0, 100, None)], 40, 40);
        check(&[interval(1, 0, 100, None)], 100_000, 100);
        check(&[interval(1, 0, 100, Some(30))], 100_000, 30);
    }

    #[test]
    fn overlapping_intervals_count_once() {
        check(&[interval(1, 0, 100, None), interval(1, 20, 120, Some(90))], 1000, 100);
        check(&[interval(1, 0, 100, None), interval(1, 0, 100, None)], 1000, 100);
        check(&[interval(1, 0, 100, None), interval(2, 0, 100, None)], 1000, 200);
    }

    #[test]
    fn only_the_part_in_the_period_counts() {
        let month = Period { from: at(50), until: at(80) };
        assert_eq!(running_time(&[interval(1, 0, 100, None)], month, at(1000)), Duration::from_secs(30));
        assert_eq!(running_time(&[interval(1, 0, 40, None)], month, at(1000)), Duration::ZERO);
    }

    fn any_interval() -> impl Strategy<Value = Interval> {
        (0u8..3, 0i64..200, 0i64..200, prop::option::of(0i64..200)).prop_map(|(sandbox, start, length, ended)| {
            let ended = ended.map(|ended| start + ended.min(length));
            interval(sandbox, start, start + length, ended)
        })
    }

    /// Counts the seconds in which each sandbox ran, one by one.
    fn by_hand(intervals: &[Interval], from: i64, until: i64, now: i64) -> u64 {
        let runs = |sandbox: u8, second: i64| {
            intervals.iter().any(|interval| {
                interval.sandbox.as_str() == format!("i{sandbox}")
                    && (interval.started_at.as_second()..interval.end_by(at(now)).as_second()).contains(&second)
            })
        };
        (0..3).map(|sandbox| (from..until).filter(|&second| runs(sandbox, second)).count() as u64).sum()
    }

    proptest! {
        #[test]
        fn running_time_equals_a_count_by_seconds(
            intervals in prop::collection::vec(any_interval(), 0..8), from in 0i64..200, length in 0i64..300, now in 0i64..500,
        ) {
            let period = Period { from: at(from), until: at(from + length) };
            let expected = by_hand(&intervals, from, from + length, now);
            prop_assert_eq!(running_time(&intervals, period, at(now)), Duration::from_secs(expected));
        }

        #[test]
        fn adjacent_periods_add_up(intervals in prop::collection::vec(any_interval(), 0..8), cut in 0i64..400) {
            let whole = running_time(&intervals, Period { from: at(0), until: at(400) }, at(500));
            let before = running_time(&intervals, Period { from: at(0), until: at(cut) }, at(500));
            let after = running_time(&intervals, Period { from: at(cut), until: at(400) }, at(500));
            prop_assert_eq!(before + after, whole);
        }
    }
}
