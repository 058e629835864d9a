//! Looks after workspaces that nobody has: for a server that runs all the time, so that a workspace does not depend on a
//! command being run before its sandbox ends.

use std::time::Duration;

use jiff::Timestamp;

use super::Workspaces;
use crate::events::{EventKind, WorkspaceEvent};
use crate::ledger::Verdict;
use crate::name::WorkspaceName;
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::workspace::{OpenError, Unavailable, WorkspaceError, needs_attention};

/// What came of attending to a workspace.
#[derive(Debug)]
pub struct Attended {
    /// Come again in so long: something is due, or another process may have changed something.
    /// Never far away.
    pub next: Duration,
    pub attendance: Attendance,
}

/// What was done for a workspace.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attendance {
    /// By its record nothing is due. Nobody was asked, and the workspace was not taken.
    NothingDue,
    /// What was due was done.
    Done,
    /// Somebody has it, and keeps it.
    LeftTo { owner: String },
    /// What is due could not be done. It is tried again.
    Failed(WorkspaceError),
}

impl Workspaces {
    /// Does what is due for a workspace that nobody has: extends its sandbox, replaces it, saves and stops it at the end of its
    /// time or budget, puts right what a killed process left. Then it is given back. As long as nothing is due, this is one
    /// read of the records.
    ///
    /// A paused workspace is never woken, and a local server only asked for as far as [`LocalServer`] starts none: who
    /// attends hands in one that does not.
    ///
    /// [`LocalServer`]: crate::provider::LocalServer
    ///
    /// # Errors
    /// There is none of that name, or the records cannot be read.
    pub async fn attend(&self, name: &WorkspaceName) -> Result<Attended, OpenError> {
        let slot = self.slot(name);
        let Ok(slot) = slot.try_lock() else { return Ok(self.left_to(THIS_PROCESS)) };
        if slot.upgrade().is_some_and(|held| held.core.is_open()) {
            return Ok(self.left_to(THIS_PROCESS));
        }
        let (record, details) = self.read(name).await?;
        let due = match self.is_over_budget(&record).await {
            true => Some(Duration::ZERO),
            false => needs_attention(&self.house, &record, &details),
        };
        let again = self.house.settings.look_every;
        if due.is_none_or(|due| !due.is_zero()) {
            let next = due.map_or(again, |due| due.min(again));
            return Ok(Attended { next, attendance: Attendance::NothingDue });
        }
        let core = match self.take(name, Duration::ZERO).await {
            Ok(core) => core,
            Err(OpenError::Held { owner, .. }) => return Ok(self.left_to(&owner)),
            Err(error) => return Err(error),
        };
        let (next, done) = tokio::select! {
            done = core.attend() => done,
            () = core.holding().keep_until_lost() => (again, Err(Unavailable::LeaseLost(name.clone()).into())),
        };
        core.give_back().await;
        let attendance = done.map_or_else(Attendance::Failed, |()| Attendance::Done);
        Ok(Attended { next: next.min(again), attendance })
    }

    fn now(&self) -> Timestamp {
        self.house.settings.clock.now()
    }

    fn left_to(&self, owner: &str) -> Attended {
        let next = self.house.settings.lease;
        Attended { next, attendance: Attendance::LeftTo { owner: owner.to_owned() } }
    }

    /// Whether it runs although a limit is used up. What the books do not tell is asked again soon.
    async fn is_over_budget(&self, record: &WorkspaceRecord) -> bool {
        if record.state != WorkspaceState::Ready || record.paused || record.sandbox.is_none() {
            return false;
        }
        let Ok(findings) = self.house.ledger.check(self.now()).await else { return false };
        let verdict = findings.verdict(record.project.as_str(), &record.provider);
        for warning in findings.warnings {
            let (workspace, project) = (record.name.clone(), record.project.clone());
            let kind = EventKind::LimitWarning(warning);
            self.house.observer.event(&WorkspaceEvent { workspace, project, at: self.now(), kind }).await;
        }
        verdict != Verdict::GoOn
    }
}

const THIS_PROCESS: &str = "this process";
