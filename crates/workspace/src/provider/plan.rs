//! What one has bought of a provider: limits, and what has been used of them.

use std::time::Duration;

use jiff::Timestamp;

use crate::ledger::{Usd, months, running_time};
use crate::records::{Size, UsageRows};

/// Limits; an absent one limits nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of one sandbox, from its start.
    pub longest_lifetime: Option<Duration>,
    pub concurrent_sandboxes: Option<u32>,
    pub creations_per_minute: Option<u32>,
    /// Of all sandboxes together, in a calendar month.
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

/// A creation that nobody has finished by then died with its process.
const CREATION_TIME: Duration = Duration::from_secs(120);
const MINUTE: Duration = Duration::from_secs(60);

impl Plan {
    /// Whether there is room for one more sandbox, by the usage of this provider since the month began.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admits(&self, used: &UsageRows, now: Timestamp) -> Result<(), PlanReached> {
        if let Some(most) = self.concurrent_sandboxes {
            let running = used.intervals.iter().filter(|interval| interval.runs_at(now)).count();
            let begun = used
                .creations
                .iter()
                .filter(|creation| creation.sandbox.is_none() && now.duration_since(creation.at) < span(CREATION_TIME));
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
            let minutes = running_time(&used.intervals, months::this(now), now).as_secs() / 60;
            if minutes >= most {
                return Err(PlanReached::Minutes { most });
            }
        }
        Ok(())
    }

    /// What a new sandbox may ask for, out of what is wanted.
    pub fn lifetime(&self, wanted: Duration) -> Duration {
        self.longest_lifetime.map_or(wanted, |longest| wanted.min(longest))
    }
}

fn span(time: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX)
}

/// What a running sandbox costs; the parts add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    pub per_hour: Usd,
    pub per_cpu_hour: Usd,
    /// For each GiB of memory.
    pub per_gib_hour: Usd,
    pub per_creation: Usd,
}

impl Price {
    /// Of `time` at `size`.
    pub fn of(&self, size: Size, time: Duration) -> Usd {
        const HOUR: u128 = 3_600_000_000;
        const MIB_A_GIB: u128 = 1024;
        let memory = self.per_gib_hour.for_share(u128::from(size.memory_mb), MIB_A_GIB);
        let hour = self.per_hour + self.per_cpu_hour.times(size.cpu_count.into()) + memory;
        hour.for_share(time.as_micros(), HOUR)
    }
}
