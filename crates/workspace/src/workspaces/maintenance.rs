//! Maintains workspaces that no process has open: for a long-running server, so that a workspace
//! does not depend on a command being run before its sandbox ends.

use std::time::Duration;

use jiff::Timestamp;

use super::Workspaces;
use crate::events::{EventKind, WorkspaceEvent};
use crate::ledger::Verdict;
use crate::name::WorkspaceName;
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::workspace::{OpenError, Unavailable, WorkspaceError, maintenance_due};

/// The result of maintaining a workspace.
#[derive(Debug)]
pub struct Maintained {
    /// When to come again: something is due, or another process may have changed the record. Never
    /// long.
    pub next: Duration,
    pub outcome: MaintenanceOutcome,
}

/// What was done for a workspace.
#[derive(Debug)]
#[non_exhaustive]
pub enum MaintenanceOutcome {
    /// By its record nothing is due. No request was sent, and the lease was not taken.
    NothingDue,
    /// All due actions were done.
    Done,
    /// Another process holds and supervises it.
    LeftTo { owner: String },
    /// A due action failed. It will be retried.
    Failed(WorkspaceError),
}

impl Workspaces {
    /// Does what is due for a workspace that no process holds: extends its sandbox, replaces it,
    /// saves and stops it at the end of its lifetime or budget, repairs what a killed process left.
    /// Then releases it. While nothing is due, this is one read of the records.
    ///
    /// A paused workspace is never resumed. The local server is only used if it already runs: the
    /// caller passes a [`LocalServer`] that starts none.
    ///
    /// [`LocalServer`]: crate::provider::LocalServer
    ///
    /// # Errors
    /// [`OpenError::NotFound`], [`OpenError::Damaged`] or [`OpenError::Records`].
    pub async fn maintain(&self, name: &WorkspaceName) -> Result<Maintained, OpenError> {
        let slot = self.slot(name);
        let Ok(slot) = slot.try_lock() else { return Ok(self.left_to(THIS_PROCESS)) };
        if slot.upgrade().is_some_and(|inner| inner.core.is_open()) {
            return Ok(self.left_to(THIS_PROCESS));
        }
        let (record, details) = self.read(name).await?;
        let due = match self.is_over_budget(&record).await {
            true => Some(Duration::ZERO),
            false => maintenance_due(&self.context, &record, &details),
        };
        let again = self.context.settings.inspect_interval;
        if due.is_none_or(|due| !due.is_zero()) {
            let next = due.map_or(again, |due| due.min(again));
            return Ok(Maintained { next, outcome: MaintenanceOutcome::NothingDue });
        }
        let core = match self.take(name, Duration::ZERO).await {
            Ok(core) => core,
            Err(OpenError::Held { owner, .. }) => return Ok(self.left_to(&owner)),
            Err(error) => return Err(error),
        };
        let (next, done) = tokio::select! {
            biased;
            done = core.maintain() => done,
            () = core.held_lease().renew_until_lost() => (again, Err(Unavailable::LeaseLost(name.clone()).into())),
        };
        core.release().await;
        let outcome = done.map_or_else(MaintenanceOutcome::Failed, |()| MaintenanceOutcome::Done);
        Ok(Maintained { next: next.min(again), outcome })
    }

    fn now(&self) -> Timestamp {
        self.context.settings.clock.now()
    }

    fn left_to(&self, owner: &str) -> Maintained {
        let next = self.context.settings.lease;
        Maintained { next, outcome: MaintenanceOutcome::LeftTo { owner: owner.to_owned() } }
    }

    /// Whether it runs although a limit is used up. Unreadable usage counts as no; the next round
    /// asks again.
    async fn is_over_budget(&self, record: &WorkspaceRecord) -> bool {
        if record.state != WorkspaceState::Ready || record.paused || record.sandbox.is_none() {
            return false;
        }
        let Ok(findings) = self.context.ledger.check(self.now()).await else { return false };
        let verdict = findings.verdict(record.project.as_str(), &record.provider);
        for warning in findings.warnings {
            let (workspace, project) = (record.name.clone(), record.project.clone());
            let kind = EventKind::LimitWarning(warning);
            self.context.observer.event(&WorkspaceEvent { workspace, project, at: self.now(), kind }).await;
        }
        verdict != Verdict::Continue
    }
}

const THIS_PROCESS: &str = "this process";
