//! Limits on money and time, how much of each is used, and whether work may continue. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::money::Usd;
use super::months;
use crate::config::BudgetPeriod;
use crate::name::ProviderName;

/// The used percentages of a limit at which a warning is issued.
pub const WARN_AT: [u8; 3] = [50, 80, 95];

/// A spending limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Limit {
    /// A budget of one project, or of all together.
    Budget { project: Option<String>, usd: Usd, period: BudgetPeriod },
    /// The monthly minutes of a provider's plan.
    PlanMinutes { provider: ProviderName, minutes: u64 },
}

impl Limit {
    /// Whether work for a project on a provider counts towards this limit.
    pub fn covers(&self, project: &str, provider: &ProviderName) -> bool {
        match self {
            Self::Budget { project: None, .. } => true,
            Self::Budget { project: Some(of), .. } => of == project,
            Self::PlanMinutes { provider: of, .. } => of == provider,
        }
    }

    /// Whether a report on a project shows this limit.
    pub fn concerns(&self, project: &str) -> bool {
        !matches!(self, Self::Budget { project: Some(of), .. } if of != project)
    }

    /// Identifies a limit in recorded warnings. It contains the figure, so that a raised limit
    /// warns again.
    pub(super) fn key(&self) -> String {
        match self {
            Self::Budget { project: Some(project), usd, .. } => format!("budget {} {project}", usd.nanos()),
            Self::Budget { project: None, usd, .. } => format!("budget {}", usd.nanos()),
            Self::PlanMinutes { provider, minutes } => format!("plan {minutes} {provider}"),
        }
    }

    pub(super) fn period(&self, now: Timestamp) -> String {
        match self {
            Self::Budget { period: BudgetPeriod::Total, .. } => "total".to_owned(),
            Self::Budget { period: BudgetPeriod::Month, .. } | Self::PlanMinutes { .. } => months::name(now),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = |period: &BudgetPeriod| match period {
            BudgetPeriod::Month => " a month",
            BudgetPeriod::Total => "",
        };
        match self {
            Self::Budget { project: Some(project), usd, period } => {
                write!(f, "the budget of {usd}{} for project {project}", when(period))
            }
            Self::Budget { project: None, usd, period } => write!(f, "the budget of {usd}{}", when(period)),
            Self::PlanMinutes { provider, minutes } => {
                write!(f, "the {minutes} minutes a month of provider {provider}")
            }
        }
    }
}

/// A limit and its current use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Meter {
    pub limit: Limit,
    /// In units of the limit: nanodollars, or minutes.
    #[serde(skip)]
    pub(super) used: u64,
    /// Percent used, rounded down; may exceed 100.
    #[serde(rename = "used_percent")]
    percent: u64,
}

impl Meter {
    pub(super) fn new(limit: Limit, used: u64) -> Self {
        let whole = match &limit {
            Limit::Budget { usd, .. } => usd.nanos(),
            Limit::PlanMinutes { minutes, .. } => *minutes,
        };
        let percent = u128::from(used) * 100 / u128::from(whole.max(1));
        Self { limit, used, percent: u64::try_from(percent).unwrap_or(u64::MAX) }
    }

    pub fn percent(&self) -> u64 {
        self.percent
    }

    /// The amount used, formatted for display.
    pub fn used(&self) -> String {
        match &self.limit {
            Limit::Budget { .. } => Usd::from_nanos(self.used).to_string(),
            Limit::PlanMinutes { .. } => format!("{} minutes", self.used),
        }
    }

    /// The warning thresholds that are reached.
    pub fn reached(&self) -> impl Iterator<Item = u8> + use<> {
        let percent = self.percent;
        WARN_AT.into_iter().filter(move |&share| percent >= u64::from(share))
    }

    pub fn is_used_up(&self) -> bool {
        self.percent >= 100
    }
}

/// Whether work may continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    /// A limit is used up. The sandbox is never killed: its work is kept and continues when there
    /// is budget again.
    CheckpointAndPause {
        limit: Limit,
    },
}

/// A used-up budget that stops a project on every provider.
pub(crate) fn find_used_up_budget(meters: &[Meter], project: &str) -> Option<Limit> {
    let covers = |limit: &Limit| match limit {
        Limit::Budget { project: of, .. } => of.as_deref().is_none_or(|of| of == project),
        // Another provider may have minutes left.
        Limit::PlanMinutes { .. } => false,
    };
    meters.iter().find(|meter| meter.is_used_up() && covers(&meter.limit)).map(|meter| meter.limit.clone())
}

/// Decides whether a project's work on a provider may continue.
pub fn verdict(meters: &[Meter], project: &str, provider: &ProviderName) -> Verdict {
    let over = meters.iter().find(|meter| meter.is_used_up() && meter.limit.covers(project, provider));
    over.map_or(Verdict::Continue, |meter| Verdict::CheckpointAndPause { limit: meter.limit.clone() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn budget(project: Option<&str>) -> Limit {
        Limit::Budget { project: project.map(Into::into), usd: Usd::from_cents(1000), period: BudgetPeriod::Month }
    }

    fn cents(cents: u32) -> u64 {
        Usd::from_cents(cents).nanos()
    }

    #[test]
    fn thresholds_are_reached_exactly() {
        for (used, reached) in [
            (0, &[][..]),
            (499, &[]),
            (500, &[50]),
            (799, &[50]),
            (800, &[50, 80]),
            (950, &[50, 80, 95]),
            (5000, &[50, 80, 95]),
        ] {
            assert_eq!(Meter::new(budget(None), cents(used)).reached().collect::<Vec<_>>(), reached, "{used} cents");
        }
    }

    #[test]
    fn a_used_up_limit_pauses_only_what_it_covers() {
        let meters = [Meter::new(budget(Some("shop")), cents(1000)), Meter::new(budget(None), cents(999))];
        let provider: ProviderName = "e2b".parse().expect("a name");
        assert_eq!(verdict(&meters, "shop", &provider), Verdict::CheckpointAndPause { limit: budget(Some("shop")) });
        assert_eq!(verdict(&meters, "blog", &provider), Verdict::Continue);
        let plan = Limit::PlanMinutes { provider: provider.clone(), minutes: 60 };
        let meters = [Meter::new(plan.clone(), 60)];
        assert_eq!(verdict(&meters, "blog", &provider), Verdict::CheckpointAndPause { limit: plan });
        assert_eq!(verdict(&meters, "blog", &"local".parse().expect("a name")), Verdict::Continue);
    }

    proptest! {
        #[test]
        fn reached_thresholds_grow_with_use(a in any::<u64>(), b in any::<u64>()) {
            let shares = |used: u64| Meter::new(budget(None), used).reached().count();
            prop_assert!(shares(a.min(b)) <= shares(a.max(b)));
        }
    }
}
