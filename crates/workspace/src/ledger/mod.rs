//! Usage, its cost, and the limits on it.
//!
//! All sums are pure functions over recorded rows. Nothing is counted in memory, so a crash loses
//! nothing and a retry counts nothing twice.

mod budget;
mod money;
pub mod months;
mod running;
mod statement;

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use tracing::warn;

pub(crate) use budget::find_used_up_budget;
pub use budget::{Limit, Meter, Verdict, WARN_AT, verdict};
pub use money::Usd;
pub use months::Period;
pub use running::running_time;
pub use statement::{Line, Prices, Source, Statement, Sums};

use crate::config::{BudgetPeriod, WorkspaceConfig};
use crate::name::ProviderName;
use crate::records::{Records, RecordsError, UsageQuery, UsageRows, Warning};

/// Usage of one set of records, or of several read together.
pub struct Ledger {
    records: Arc<dyn Records>,
    /// Further records, read only.
    also: Vec<Arc<dyn Records>>,
    prices: Prices,
    limits: Vec<Limit>,
}

/// A threshold that was crossed. Reported once, to the process that detects it first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitWarning {
    pub limit: Limit,
    pub percent: u8,
    /// Formatted for display.
    pub used: String,
}

/// The result of a check of all limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Warnings not reported before.
    pub warnings: Vec<LimitWarning>,
    pub meters: Vec<Meter>,
}

impl Findings {
    /// Whether a project's work on a provider may continue.
    pub fn verdict(&self, project: &str, provider: &ProviderName) -> Verdict {
        verdict(&self.meters, project, provider)
    }
}

impl Ledger {
    /// With the prices and limits of a resolved configuration.
    pub fn new(records: Arc<dyn Records>, config: &WorkspaceConfig) -> Self {
        let prices = Prices {
            providers: config.providers.iter().map(|provider| (provider.name.clone(), provider.price())).collect(),
            stored_gib_month: config.objects.usd_per_gib_month.and_then(Usd::from_dollars).unwrap_or(Usd::ZERO),
        };
        let budgets = config.budgets.iter().filter_map(|budget| {
            let usd = Usd::from_dollars(budget.usd)?;
            Some(Limit::Budget { project: budget.project.clone(), usd, period: budget.period })
        });
        let plans = config.providers.iter().filter_map(|provider| {
            let minutes = provider.plan.minutes_per_month?;
            Some(Limit::PlanMinutes { provider: provider.name.clone(), minutes })
        });
        Self { records, also: Vec::new(), prices, limits: budgets.chain(plans).collect() }
    }

    /// Adds other records: statements and limits count both.
    #[must_use]
    pub fn and(mut self, records: Arc<dyn Records>) -> Self {
        self.also.push(records);
        self
    }

    async fn usage(&self, query: &UsageQuery) -> Result<UsageRows, RecordsError> {
        let mut rows = self.records.usage(query).await?;
        for records in &self.also {
            let UsageRows { creations, intervals, stored, token_usage } = records.usage(query).await?;
            rows.creations.extend(creations);
            rows.intervals.extend(intervals);
            rows.stored.extend(stored);
            rows.token_usage.extend(token_usage);
        }
        Ok(rows)
    }

    /// Usage in a period, of all projects or of one.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn statement(
        &self,
        period: Period,
        project: Option<&str>,
        now: Timestamp,
    ) -> Result<Statement, RecordsError> {
        let [statement] = self.statements([period], project, now).await?;
        Ok(statement)
    }

    /// Like [`Ledger::statement`] for several periods, with one read.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn statements<const N: usize>(
        &self,
        periods: [Period; N],
        project: Option<&str>,
        now: Timestamp,
    ) -> Result<[Statement; N], RecordsError> {
        let earliest = periods.iter().map(|period| period.from).min().unwrap_or(now);
        let query = UsageQuery {
            since: (earliest != Period::ALWAYS.from).then_some(earliest),
            project: project.map(Into::into),
            provider: None,
        };
        let rows = self.usage(&query).await?;
        Ok(periods.map(|period| Statement::new(&rows, &self.prices, period, now)))
    }

    /// How much of each limit is used, without issuing warnings.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn meters(&self, now: Timestamp) -> Result<Vec<Meter>, RecordsError> {
        let lasting =
            self.limits.iter().any(|limit| matches!(limit, Limit::Budget { period: BudgetPeriod::Total, .. }));
        let month = months::current(now);
        let query = UsageQuery { since: (!lasting).then_some(month.from), ..UsageQuery::default() };
        let rows = if self.limits.is_empty() { UsageRows::default() } else { self.usage(&query).await? };
        let monthly = Statement::new(&rows, &self.prices, month, now);
        let whole =
            if lasting { Statement::new(&rows, &self.prices, Period::ALWAYS, now) } else { Statement::default() };
        let meter = |limit: &Limit| {
            let used = match limit {
                Limit::Budget { project, period, .. } => {
                    let statement = if *period == BudgetPeriod::Month { &monthly } else { &whole };
                    let sums = match project {
                        None => statement.total(),
                        Some(project) => statement.by_project().remove(project).unwrap_or_default(),
                    };
                    sums.cost.nanos()
                }
                Limit::PlanMinutes { provider, .. } => {
                    let source = Source::Provider(provider.clone());
                    monthly.by_source().remove(&source).unwrap_or_default().running.as_secs() / 60
                }
            };
            Meter::new(limit.clone(), used)
        };
        Ok(self.limits.iter().map(meter).collect())
    }

    /// Checks every limit, and reports each reached threshold to exactly one caller.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read or written.
    pub async fn check(&self, now: Timestamp) -> Result<Findings, RecordsError> {
        let meters = self.meters(now).await?;
        let mut warnings = Vec::new();
        for meter in &meters {
            for percent in meter.reached() {
                let (limit, period) = (meter.limit.key(), meter.limit.period(now));
                if self.records.record_warning(&Warning { limit, period, percent, at: now }).await? {
                    warn!(percent, used = meter.used(), "{percent} % of {} are used", meter.limit);
                    warnings.push(LimitWarning { limit: meter.limit.clone(), percent, used: meter.used() });
                }
            }
        }
        Ok(Findings { warnings, meters })
    }
}
