//! Resource usage of a sandbox over time, in bounded memory: fine points for the last hour, coarse
//! ones for the day before it.

use std::collections::VecDeque;
use std::time::Duration;

use engine::Usage;
use jiff::Timestamp;

/// How often the usage of a running sandbox is sampled.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
const FINE_POINTS: usize = 720;
const COARSE_POINTS: usize = 1440;
/// One of this many fine points is kept as a coarse point.
const FINE_PER_COARSE: usize = 12;

/// One sample; sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub at: Timestamp,
    pub cpu_count: u32,
    /// Share of all the sandbox's processors since the sample before, 0 to 100.
    pub cpu_used_percent: f64,
    pub memory_used: u64,
    pub memory_total: u64,
    pub memory_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// The samples of one sandbox, oldest first.
#[derive(Debug, Default)]
pub struct Readings {
    coarse: VecDeque<Sample>,
    fine: VecDeque<Sample>,
    dropped: usize,
    last_cpu: Option<(Timestamp, u64)>,
}

impl Readings {
    /// Adds `usage` as a sample at `now`.
    pub fn record(&mut self, now: Timestamp, cpu_count: u32, usage: Usage) {
        let cpu_used_percent = match self.last_cpu {
            Some((then, before)) if now > then => {
                let elapsed = (now.as_microsecond() - then.as_microsecond()) as f64 * f64::from(cpu_count);
                let used = usage.cpu_usec.saturating_sub(before) as f64;
                ((used / elapsed).clamp(0.0, 1.0) * 10_000.0).round() / 100.0
            }
            _ => 0.0,
        };
        self.last_cpu = Some((now, usage.cpu_usec));
        self.push(Sample {
            at: now,
            cpu_count,
            cpu_used_percent,
            memory_used: usage.memory_used,
            memory_total: usage.memory_limit,
            memory_cache: usage.memory_cache,
            disk_used: usage.disk_used,
            disk_total: usage.disk_limit,
        });
    }

    /// Forgets the last processor time: a new boot counts from zero.
    pub fn reset(&mut self) {
        self.last_cpu = None;
    }

    fn push(&mut self, sample: Sample) {
        if self.fine.len() == FINE_POINTS
            && let Some(oldest) = self.fine.pop_front()
        {
            if self.dropped.is_multiple_of(FINE_PER_COARSE) {
                if self.coarse.len() == COARSE_POINTS {
                    self.coarse.pop_front();
                }
                self.coarse.push_back(oldest);
            }
            self.dropped += 1;
        }
        self.fine.push_back(sample);
    }

    /// Samples within both bounds, each inclusive.
    pub fn between(&self, start: Option<Timestamp>, end: Option<Timestamp>) -> Vec<Sample> {
        let inside =
            |sample: &&Sample| start.is_none_or(|start| sample.at >= start) && end.is_none_or(|end| sample.at <= end);
        self.coarse.iter().chain(&self.fine).filter(inside).copied().collect()
    }

    pub fn latest(&self) -> Option<Sample> {
        self.fine.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn processor_use_is_a_share_of_what_the_sandbox_has() {
        let mut readings = Readings::default();
        readings.record(at(0), 2, Usage { cpu_usec: 5_000_000, ..Usage::default() });
        readings.record(at(5), 2, Usage { cpu_usec: 10_000_000, ..Usage::default() });
        let percents: Vec<f64> = readings.between(None, None).iter().map(|sample| sample.cpu_used_percent).collect();
        assert_eq!(percents, [0.0, 50.0]);
    }

    #[test]
    fn memory_is_bounded_and_old_points_thin_out() {
        let mut readings = Readings::default();
        for index in 0..100_000 {
            readings.record(at(index * 5), 1, Usage::default());
        }
        let all = readings.between(None, None);
        assert_eq!(all.len(), FINE_POINTS + COARSE_POINTS);
        assert!(all.is_sorted_by_key(|sample| sample.at));
        assert_eq!(readings.latest().map(|sample| sample.at), Some(at(499_995)));
        assert_eq!(all[1].at.as_second() - all[0].at.as_second(), 60);
    }

    #[test]
    fn a_range_is_inclusive() {
        let mut readings = Readings::default();
        for second in [10, 15, 20] {
            readings.record(at(second), 1, Usage::default());
        }
        assert_eq!(readings.between(Some(at(15)), Some(at(20))).len(), 2);
        assert_eq!(readings.between(None, Some(at(9))).len(), 0);
    }
}
