//! Limits on money and time, how much of each is used, and what follows. Pure.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::money::Usd;
use super::months;
use crate::config::BudgetPeriod;
use crate::name::ProviderName;

/// Shares of a limit at which somebody is told.
pub const WARN_AT: [u8; 3] = [50, 80, 95];

/// Something of which there is only so much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Limit {
    /// Of one project, or of all together.
    Budget { project: Option<String>, usd: Usd, period: BudgetPeriod },
    /// The minutes of a provider's plan in a month.
    PlanMinutes { provider: ProviderName, minutes: u64 },
}

impl Limit {
    /// Whether what happens for a project on a provider counts towards it.
    pub fn covers(&self, project: &str, provider: &ProviderName) -> bool {
        match self {
            Self::Budget { project: None, .. } => true,
            Self::Budget { project: Some(of), .. } => of == project,
            Self::PlanMinutes { provider: of, .. } => of == provider,
        }
    }

    /// Whether somebody who looks at a project wants to see it.
    pub fn concerns(&self, project: &str) -> bool {
        !matches!(self, Self::Budget { project: Some(of), .. } if of != project)
    }

    /// What warnings are told apart by. It has the figure, so that a limit that was raised warns again.
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

/// A limit and what is used of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Meter {
    pub limit: Limit,
    /// In units of the limit: billionths of a dollar, or minutes.
    #[serde(skip)]
    pub(super) used: u64,
    /// Of a hundred, rounded down; may be more.
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

    /// What is used, for people.
    pub fn used(&self) -> String {
        match &self.limit {
            Limit::Budget { .. } => Usd::from_nanos(self.used).to_string(),
            Limit::PlanMinutes { .. } => format!("{} minutes", self.used),
        }
    }

    /// The shares that are reached.
    pub fn reached(&self) -> impl Iterator<Item = u8> + use<> {
        let percent = self.percent;
        WARN_AT.into_iter().filter(move |&share| percent >= u64::from(share))
    }

    pub fn is_used_up(&self) -> bool {
        self.percent >= 100
    }
}

/// Whether work may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    GoOn,
    /// A limit is used up. Never kill: the work is kept and can go on when there is money again.
    SnapshotAndPause {
        limit: Limit,
    },
}

/// The budget that leaves a project no money, wherever it runs.
pub(crate) fn budget_used_up(meters: &[Meter], project: &str) -> Option<Limit> {
    let covers = |limit: &Limit| match limit {
        Limit::Budget { project: of, .. } => of.as_deref().is_none_or(|of| of == project),
        // Another provider may have minutes left.
        Limit::PlanMinutes { .. } => false,
    };
    meters.iter().find(|meter| meter.is_used_up() && covers(&meter.limit)).map(|meter| meter.limit.clone())
}

/// What follows for a project on a provider.
pub fn verdict(meters: &[Meter], project: &str, provider: &ProviderName) -> Verdict {
    let over = meters.iter().find(|meter| meter.is_used_up() && meter.limit.covers(project, provider));
    over.map_or(Verdict::GoOn, |meter| Verdict::SnapshotAndPause { limit: meter.limit.clone() })
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
    fn a_share_is_reached_at_the_share_and_not_before() {
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
    fn at_the_limit_the_work_it_covers_is_paused_and_no_other() {
        let meters = [Meter::new(budget(Some("shop")), cents(1000)), Meter::new(budget(None), cents(999))];
        let provider: ProviderName = "e2b".parse().expect("a name");
        assert_eq!(verdict(&meters, "shop", &provider), Verdict::SnapshotAndPause { limit: budget(Some("shop")) });
        assert_eq!(verdict(&meters, "blog", &provider), Verdict::GoOn);
        let plan = Limit::PlanMinutes { provider: provider.clone(), minutes: 60 };
        let meters = [Meter::new(plan.clone(), 60)];
        assert_eq!(verdict(&meters, "blog", &provider), Verdict::SnapshotAndPause { limit: plan });
        assert_eq!(verdict(&meters, "blog", &"local".parse().expect("a name")), Verdict::GoOn);
    }

    proptest! {
        #[test]
        fn more_use_never_reaches_less(a in any::<u64>(), b in any::<u64>()) {
            let shares = |used: u64| Meter::new(budget(None), used).reached().count();
            prop_assert!(shares(a.min(b)) <= shares(a.max(b)));
        }
    }
}
