//! Billing periods.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// A half-open interval of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Period {
    /// All time.
    pub const ALWAYS: Self = Self { from: Timestamp::MIN, until: Timestamp::MAX };
}

/// The calendar month of `now`, in UTC.
pub fn current(now: Timestamp) -> Period {
    let day = now.to_zoned(TimeZone::UTC).date();
    let first = day.first_of_month();
    let next = day.last_of_month().tomorrow();
    let start = |date: Date| date.to_zoned(TimeZone::UTC).map(|moment| moment.timestamp());
    Period { from: start(first).unwrap_or(Timestamp::MIN), until: next.and_then(start).unwrap_or(Timestamp::MAX) }
}

/// The name of the month of `now`, such as `2026-11`.
pub fn name(now: Timestamp) -> String {
    now.to_zoned(TimeZone::UTC).strftime("%Y-%m").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_ends_where_the_next_begins() {
        for (now, from, until) in [
            ("2026-11-16T00:00:00Z", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            let moment = |text: &str| text.parse::<Timestamp>().expect("a moment");
            assert_eq!(current(moment(now)), Period { from: moment(from), until: moment(until) });
        }
        assert_eq!(name("2026-12-31T23:59:59Z".parse().expect("a moment")), "2026-12");
    }
}
