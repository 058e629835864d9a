//! A provider's plan: limits, and how much of them is used.

use std::time::Duration;

use jiff::Timestamp;

use crate::ledger::{Usd, months, running_time};
use crate::records::{Size, UsageRows};

/// Limits; an absent one does not apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plan {
    /// Per sandbox, from its start.
    pub longest_lifetime: Option<Duration>,
    pub concurrent_sandboxes: Option<u32>,
    pub creations_per_minute: Option<u32>,
    /// Of all sandboxes together, per calendar month.
    pub minutes_per_month: Option<u64>,
}

/// A limit that is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanReached {
    #[error("the plan's {most} concurrent sandboxes are running")]
    Concurrency { most: u32 },
    #[error("the plan's {most} creations a minute are made")]
    Creations { most: u32 },
    #[error("the plan's {most} minutes of this month are used")]
    Minutes { most: u64 },
}

/// A creation unfinished by then died with its process.
const CREATION_TIMEOUT: Duration = Duration::from_secs(120);
const MINUTE: Duration = Duration::from_secs(60);

impl Plan {
    /// Whether one more sandbox is allowed, by the usage of this provider since the start of the
    /// month.
    ///
    /// # Errors
    /// [`PlanReached`] names the limit.
    pub fn admits(&self, used: &UsageRows, now: Timestamp) -> Result<(), PlanReached> {
        if let Some(most) = self.concurrent_sandboxes {
            let running = used.intervals.iter().filter(|interval| interval.runs_at(now)).count();
            let begun = used.creations.iter().filter(|creation| {
                creation.sandbox.is_none() && now.duration_since(creation.at) < span(CREATION_TIMEOUT)
            });
            if running + begun.count() >= most as usize {
                return Err(PlanReached::Concurrency { most });
            }
        }
        if let Some(most) = self.creations_per_minute {
            let recent = |at: Timestamp| at <= now && now.duration_since(at) < span(MINUTE);
            if used.creations.iter().filter(|creation| recent(creation.at)).count() >= most as usize {
                return Err(PlanReached::Creations { most });
            }
        }
        if let Some(most) = self.minutes_per_month {
            let minutes = running_time(&used.intervals, months::current(now), now).as_secs() / 60;
            if minutes >= most {
                return Err(PlanReached::Minutes { most });
            }
        }
        Ok(())
    }

    /// The wanted lifetime, capped by the plan.
    pub fn lifetime(&self, wanted: Duration) -> Duration {
        self.longest_lifetime.map_or(wanted, |longest| wanted.min(longest))
    }
}

fn span(time: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX)
}

/// The price of a running sandbox: the sum of these parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    pub per_hour: Usd,
    pub per_cpu_hour: Usd,
    /// Per GiB of memory.
    pub per_gib_hour: Usd,
    pub per_creation: Usd,
}

impl Price {
    /// The cost of running `size` for `time`.
    pub fn cost(&self, size: Size, time: Duration) -> Usd {
        const HOUR: u128 = 3_600_000_000;
        const MIB_A_GIB: u128 = 1024;
        let memory = self.per_gib_hour.for_share(u128::from(size.memory_mb), MIB_A_GIB);
        let hour = self.per_hour + self.per_cpu_hour.times(size.cpu_count.into()) + memory;
        hour.for_share(time.as_micros(), HOUR)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::records::{Creation, Interval, Payer};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    fn creation(second: i64) -> Creation {
        Creation {
            id: Uuid::nil(),
            at: at(second),
            provider: "p".parse().expect("a name"),
            payer: Payer { project: "p".into(), job: None },
            sandbox: None,
        }
    }

    fn interval(started: i64, until: i64) -> Interval {
        Interval {
            provider: "p".parse().expect("a name"),
            sandbox: "i1".parse().expect("an id"),
            payer: Payer { project: "p".into(), job: None },
            size: Size::default(),
            started_at: at(started),
            until: at(until),
            ended_at: None,
        }
    }

    #[test]
    fn running_and_pending_sandboxes_count_towards_the_plan() {
        let plan = Plan { concurrent_sandboxes: Some(2), ..Plan::default() };
        let used =
            UsageRows { creations: vec![creation(1000)], intervals: vec![interval(0, 5000)], ..UsageRows::default() };
        assert_eq!(plan.admits(&used, at(1010)), Err(PlanReached::Concurrency { most: 2 }));
        // An unfinished creation expires, and an ended interval frees its slot.
        assert_eq!(plan.admits(&used, at(1200)), Ok(()));
        assert_eq!(plan.admits(&used, at(5000)), Ok(()));
        assert_eq!(Plan::default().admits(&used, at(1010)), Ok(()));
    }

    #[test]
    fn creations_of_the_last_minute_count() {
        let plan = Plan { creations_per_minute: Some(2), ..Plan::default() };
        let used = UsageRows { creations: vec![creation(0), creation(50)], ..UsageRows::default() };
        assert_eq!(plan.admits(&used, at(59)), Err(PlanReached::Creations { most: 2 }));
        assert_eq!(plan.admits(&used, at(60)), Ok(()));
    }

    #[test]
    fn minutes_count_in_their_month() {
        let plan = Plan { minutes_per_month: Some(60), ..Plan::default() };
        let first = months::current(at(1_700_000_000)).from.as_second();
        // Half an hour of the hour and a half lies in the previous month.
        let used = UsageRows { intervals: vec![interval(first - 1800, first + 3600)], ..UsageRows::default() };
        assert_eq!(plan.admits(&used, at(first + 3599)), Ok(()));
        assert_eq!(plan.admits(&used, at(first + 3600)), Err(PlanReached::Minutes { most: 60 }));
        assert_eq!(plan.lifetime(Duration::from_secs(9)), Duration::from_secs(9));
    }

    #[test]
    fn prices_add_up_by_size_and_time() {
        let price = Price {
            per_hour: Usd::from_cents(10),
            per_cpu_hour: Usd::from_cents(5),
            per_gib_hour: Usd::from_cents(2),
            per_creation: Usd::ZERO,
        };
        let size = Size { cpu_count: 2, memory_mb: 512, disk_mb: 0 };
        assert_eq!(price.cost(size, Duration::from_secs(3600)), Usd::from_cents(21));
        assert_eq!(price.cost(size, Duration::from_secs(1800)), Usd::from_nanos(105_000_000));
    }
}
