//! Usage and cost in a period. Pure: rows and prices in, sums out.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::money::Usd;
use super::months::Period;
use super::running::count_time;
use crate::name::ProviderName;
use crate::provider::Price;
use crate::records::{Size, Stored, UsageRows};

/// Prices. A provider without a price is free.
#[derive(Debug, Clone, Default)]
pub struct Prices {
    pub providers: BTreeMap<ProviderName, Price>,
    pub stored_gib_month: Usd,
}

/// The sums of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    pub creations: u64,
    #[serde(rename = "running_seconds", serialize_with = "whole_seconds")]
    pub running: Duration,
    /// In byte-hours.
    #[serde(rename = "stored_byte_hours", serialize_with = "as_number")]
    pub stored: u128,
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(rename = "cost_usd")]
    pub cost: Usd,
}

fn whole_seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_secs())
}

fn as_number<S: serde::Serializer>(count: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(*count).unwrap_or(u64::MAX))
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.creations += other.creations;
        self.running += other.running;
        self.stored += other.stored;
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cost += other.cost;
    }
}

/// The usage of one payer from one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    pub project: String,
    pub job: Option<String>,
    pub from: Source,
    /// Only on lines of running time.
    pub size: Option<Size>,
    #[serde(flatten)]
    pub sums: Sums,
}

/// The source of usage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Provider(ProviderName),
    Objects,
    Model(String),
}

/// The usage lines of a period.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Statement {
    pub lines: Vec<Line>,
}

type Key = (String, Option<String>, Source, Option<Size>);

impl Statement {
    pub fn new(rows: &UsageRows, prices: &Prices, period: Period, now: Timestamp) -> Self {
        let mut groups: BTreeMap<Key, Sums> = BTreeMap::new();
        let of_provider = |payer: &crate::records::Payer, provider: &ProviderName, size| {
            (payer.project.clone(), payer.job.clone(), Source::Provider(provider.clone()), size)
        };
        let within = |at: Timestamp| period.from <= at && at < period.until && at <= now;
        for creation in rows.creations.iter().filter(|creation| within(creation.at)) {
            let sums = groups.entry(of_provider(&creation.payer, &creation.provider, None)).or_default();
            sums.creations += 1;
        }
        for (interval, time) in count_time(&rows.intervals, period, now) {
            let key = of_provider(&interval.payer, &interval.provider, Some(interval.size));
            groups.entry(key).or_default().running += time;
        }
        for (project, byte_hours) in stored_byte_hours(&rows.stored, period, now) {
            groups.entry((project, None, Source::Objects, None)).or_default().stored += byte_hours;
        }
        for token_usage in rows.token_usage.iter().filter(|token_usage| within(token_usage.at)) {
            let key = (
                token_usage.payer.project.clone(),
                token_usage.payer.job.clone(),
                Source::Model(token_usage.model.clone()),
                None,
            );
            let sums = groups.entry(key).or_default();
            sums.input_tokens = sums.input_tokens.saturating_add(token_usage.input);
            sums.output_tokens = sums.output_tokens.saturating_add(token_usage.output);
            sums.cost += token_usage.cost;
        }
        // Priced after summing, so that a sandbox in many intervals costs the same as in one.
        for ((_, _, source, size), sums) in &mut groups {
            sums.cost += match source {
                Source::Provider(provider) => {
                    let price = prices.providers.get(provider).copied().unwrap_or_default();
                    let running = size.map_or(Usd::ZERO, |size| price.cost(size, sums.running));
                    running + price.per_creation.times(sums.creations)
                }
                Source::Objects => prices.stored_gib_month.for_share(sums.stored, GIB * HOURS_A_MONTH),
                Source::Model(_) => Usd::ZERO,
            };
        }
        let line = |((project, job, from, size), sums): (Key, Sums)| Line { project, job, from, size, sums };
        Self { lines: groups.into_iter().map(line).filter(|line| line.sums != Sums::default()).collect() }
    }

    pub fn total(&self) -> Sums {
        self.sums(|_| Some(())).remove(&()).unwrap_or_default()
    }

    pub fn by_project(&self) -> BTreeMap<String, Sums> {
        self.sums(|line| Some(line.project.clone()))
    }

    /// By provider, object store and model.
    pub fn by_source(&self) -> BTreeMap<Source, Sums> {
        self.sums(|line| Some(line.from.clone()))
    }

    /// Only usage that belongs to a job.
    pub fn by_job(&self) -> BTreeMap<String, Sums> {
        self.sums(|line| line.job.clone())
    }

    fn sums<K: Ord>(&self, key: impl Fn(&Line) -> Option<K>) -> BTreeMap<K, Sums> {
        let mut groups: BTreeMap<K, Sums> = BTreeMap::new();
        for line in &self.lines {
            if let Some(key) = key(line) {
                groups.entry(key).or_default().add(&line.sums);
            }
        }
        groups
    }
}

const GIB: u128 = 1 << 30;
/// The average month, as object stores bill.
const HOURS_A_MONTH: u128 = 730;
const MICROS_AN_HOUR: u128 = 3_600_000_000;

/// The byte-hours of each project: a recorded level holds until the next one.
fn stored_byte_hours(levels: &[Stored], period: Period, now: Timestamp) -> BTreeMap<String, u128> {
    let mut by_project: BTreeMap<&str, Vec<&Stored>> = BTreeMap::new();
    for level in levels {
        by_project.entry(&level.project).or_default().push(level);
    }
    let end = period.until.min(now);
    let mut sums = BTreeMap::new();
    for (project, mut levels) in by_project {
        levels.sort_by_key(|level| level.at);
        let nexts = levels.iter().skip(1).map(|next| next.at).chain([Timestamp::MAX]);
        let byte_micros: u128 = levels
            .iter()
            .zip(nexts)
            .map(|(level, next)| {
                let time = next.min(end).duration_since(level.at.max(period.from));
                Duration::try_from(time).unwrap_or_default().as_micros().saturating_mul(u128::from(level.bytes))
            })
            .sum();
        sums.insert(project.to_owned(), byte_micros / MICROS_AN_HOUR);
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::records::{Creation, Interval, Payer, TokenUsage};

    const SIZE: Size = Size { cpu_count: 2, memory_mb: 1024, disk_mb: 1024 };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a moment")
    }

    fn payer(project: &str, job: Option<&str>) -> Payer {
        Payer { project: project.into(), job: job.map(Into::into) }
    }

    fn interval(project: &str, job: Option<&str>, provider: &str, sandbox: &str, from: i64, until: i64) -> Interval {
        Interval {
            provider: provider.parse().expect("a name"),
            sandbox: sandbox.parse().expect("an id"),
            payer: payer(project, job),
            size: SIZE,
            started_at: at(from),
            until: at(until),
            ended_at: Some(at(until)),
        }
    }

    fn prices() -> Prices {
        let price = Price { per_hour: Usd::from_cents(10), ..Price::default() };
        let paid = Price { per_cpu_hour: Usd::from_cents(5), per_creation: Usd::from_cents(1), ..Price::default() };
        let name = |text: &str| text.parse().expect("a name");
        Prices {
            providers: BTreeMap::from([(name("e2b"), price), (name("own"), paid)]),
            stored_gib_month: Usd::from_cents(73),
        }
    }

    fn rows() -> UsageRows {
        UsageRows {
            creations: vec![Creation {
                id: Uuid::nil(),
                at: at(0),
                provider: "own".parse().expect("a name"),
                payer: payer("shop", Some("j1")),
                sandbox: None,
            }],
            intervals: vec![
                interval("shop", Some("j1"), "e2b", "i1", 0, 3600),
                interval("shop", Some("j2"), "own", "i2", 0, 7200),
                interval("blog", None, "gone", "i3", 0, 7200),
            ],
            stored: vec![
                Stored { project: "shop".into(), at: at(0), bytes: 1 << 30 },
                Stored { project: "shop".into(), at: at(3600), bytes: 2 << 30 },
            ],
            token_usage: vec![TokenUsage {
                at: at(10),
                payer: payer("shop", Some("j1")),
                model: "m".into(),
                input: 100,
                output: 10,
                cost: Usd::from_cents(7),
            }],
        }
    }

    #[test]
    fn costs_are_summed_by_job_project_and_source() {
        let statement = Statement::new(&rows(), &prices(), Period::ALWAYS, at(7200));
        let jobs = statement.by_job();
        // An hour at 10 cents, a creation at 1, tokens at 7; two hours of two CPUs at 5 cents.
        assert_eq!(jobs["j1"].cost, Usd::from_cents(18));
        assert_eq!(jobs["j2"].cost, Usd::from_cents(20));
        assert_eq!((jobs["j1"].creations, jobs["j1"].input_tokens, jobs["j1"].output_tokens), (1, 100, 10));
        let projects = statement.by_project();
        // Three GiB hours at 0.1 cents.
        assert_eq!(projects["shop"].cost, Usd::from_cents(38) + Usd::from_nanos(3_000_000));
        assert_eq!((projects["blog"].cost, projects["blog"].running), (Usd::ZERO, Duration::from_secs(7200)));
        let sources = statement.by_source();
        assert_eq!(sources[&Source::Provider("e2b".parse().expect("a name"))].cost, Usd::from_cents(10));
        assert_eq!(sources[&Source::Objects].stored, 3 << 30);
        assert_eq!(statement.total().cost, Usd::from_cents(38) + Usd::from_nanos(3_000_000));
    }

    #[test]
    fn usage_outside_the_period_costs_nothing() {
        let later = Period { from: at(10_000), until: at(20_000) };
        let mut rows = rows();
        rows.stored.clear();
        assert_eq!(Statement::new(&rows, &prices(), later, at(30_000)), Statement::default());
    }

    proptest! {
        #[test]
        fn splitting_an_interval_keeps_its_cost(cuts in prop::collection::btree_set(1i64..3600, 0..12)) {
            let ends: Vec<i64> = [0].into_iter().chain(cuts).chain([3600]).collect();
            let pieces = ends.windows(2).map(|pair| interval("p", None, "own", "i1", pair[0], pair[1])).collect();
            let rows = UsageRows { intervals: pieces, ..UsageRows::default() };
            let cost = Statement::new(&rows, &prices(), Period::ALWAYS, at(9999)).total().cost;
            prop_assert_eq!(cost, Usd::from_cents(10));
        }

        #[test]
        fn sums_agree_for_every_grouping(
            parts in prop::collection::vec((0usize..3, 0usize..2, 0u8..4, 0i64..5000, 1i64..5000), 0..12),
        ) {
            let piece = |(project, provider, sandbox, from, length): (usize, usize, u8, i64, i64)| {
                let project = ["a", "b", "c"][project];
                interval(project, Some(project), ["e2b", "own"][provider], &format!("i{sandbox}"), from, from + length)
            };
            let rows = UsageRows { intervals: parts.into_iter().map(piece).collect(), ..UsageRows::default() };
            let statement = Statement::new(&rows, &prices(), Period::ALWAYS, at(99_999));
            let total = statement.total();
            for groups in [statement.by_project().into_values().collect::<Vec<_>>(), statement.by_source().into_values().collect(), statement.by_job().into_values().collect()] {
                let mut sum = Sums::default();
                groups.iter().for_each(|group| sum.add(group));
                prop_assert_eq!(&sum, &total);
            }
        }
    }
}
