//! Cleans up after interrupted handovers, of this process or an earlier one, and kills sandboxes
//! that are no longer used.
//!
//! A create whose answer was lost may make its sandbox later than the handover is settled. So every
//! handover is followed by a search for such strays once its creates must have ended. A sweep for
//! orphans does not end them: only the lease holder knows that no handover still needs them.

use jiff::Timestamp;
use tracing::warn;

use super::core::{METADATA, OpGuard, WorkspaceCore};
use super::details::{Handover, SandboxRef};
use super::error::WorkspaceError;
use super::resume::SandboxStatus;
use super::transitions;
use crate::clock::later;
use crate::faults::{WorkspacePoint, reach};
use crate::provider::ListedSandbox;
use crate::records::Creation;
use crate::workspaces::CREATION_TIMEOUT;
use text::error_chain;

impl WorkspaceCore {
    /// Rolls a failed handover back as far as possible; the next operation does the rest.
    pub(super) async fn roll_back(&self, op: &OpGuard<'_>) {
        if let Err(error) = self.settle(op).await {
            warn!(workspace = %self.name, error = %error_chain(&error), "a failed handover could not be rolled back yet");
        }
    }

    /// Kills the leftovers of an interrupted handover, of this process or an earlier one.
    /// Afterwards the workspace is in its old sandbox, or in none with its files in a checkpoint.
    pub(super) async fn settle(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        let handover = self.state().details.handover.clone();
        let Some(Handover { old, checkpoint, .. }) = handover else {
            let strays_due = self.strays_due();
            let settle = |record: &mut _, details: &mut _| {
                transitions::settle(record, details, false, Vec::new(), strays_due);
            };
            return Ok(self.update(op, settle).await?);
        };
        let (old_lives, mark) = match &old {
            None => (false, None),
            Some(place) => match self.inspect_sandbox(place).await {
                Ok(SandboxStatus::Gone) => (false, None),
                Ok(SandboxStatus::Running { sandbox, .. }) => (true, self.mark_saved(&sandbox, checkpoint).await),
                // If unknown, it is still the best candidate; the next inspection decides.
                Ok(SandboxStatus::Paused { .. }) | Err(_) => (true, None),
            },
        };
        if mark.is_none() && self.state().details.mark.is_some() {
            // The next use inspects it before anything enters.
            self.detach();
        }
        // A sandbox that seems gone is spared too: it may come back, and is recorded as lost.
        let strays = self.find_strays(old.as_ref()).await.found;
        if let Some(place) = old.filter(|_| !old_lives) {
            self.close_interval(&place).await;
        }
        let strays_due = self.strays_due();
        self.update(op, |record, details| {
            transitions::settle(record, details, old_lives, strays, strays_due);
            details.mark = mark.or(details.mark.take());
        })
        .await?;
        reach(WorkspacePoint::HandoverSettled).await;
        self.kill_retired(op).await
    }

    /// When the creates of a handover that ends now must have ended.
    pub(super) fn strays_due(&self) -> Timestamp {
        later(self.now(), CREATION_TIMEOUT)
    }

    /// Sandboxes that carry the workspace's name and are not its own: created by a process that
    /// died before it could record them, or that did not wait for the answer.
    pub(super) async fn find_strays(&self, own: Option<&SandboxRef>) -> Strays {
        let (spared, own_id, created_at) = {
            let state = self.state();
            (transitions::spare(&state.details, own), state.details.id, state.record.created_at)
        };
        let (mut strays, mut complete) = (Vec::<SandboxRef>::new(), true);
        for provider in self.context.providers_used_by(Some(&self.project)).await {
            let Ok(service) = provider.service().await else {
                complete = false;
                continue;
            };
            match service.list(Some((METADATA, self.name.as_str()))).await {
                Ok(rows) => {
                    // Their creator held this lease or an earlier one. What an earlier workspace of
                    // the name left may alone have its files. Without ids, the time tells.
                    let is_own = |row: &ListedSandbox, made: &Creation| match own_id.zip(row.workspace_id()) {
                        Some((own, id)) => id == own,
                        None => made.at >= created_at,
                    };
                    let Ok(ledger) = self.context.creations_for(&rows).await else {
                        complete = false;
                        continue;
                    };
                    let ours = rows.iter().filter(|row| ledger.find(row).is_some_and(|made| is_own(row, made)));
                    for sandbox in ours.map(|row| row.id.clone()) {
                        if !spared.contains(&sandbox) && !strays.iter().any(|stray| stray.sandbox == sandbox) {
                            strays.push(SandboxRef { provider: provider.name().clone(), sandbox });
                        }
                    }
                }
                Err(error) => {
                    complete = false;
                    warn!(provider = %provider.name(), %error, "could not list leftover sandboxes");
                }
            }
        }
        Strays { found: strays, complete }
    }

    /// Retires the strays of earlier handovers once their creates must have ended. Searches again
    /// later while a provider does not answer.
    async fn retire_strays(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        let is_due = {
            let state = self.state();
            transitions::may_retire_strays(&state.record, &state.details, self.now())
        };
        if !is_due {
            return Ok(());
        }
        let Strays { found, complete } = self.find_strays(self.current_sandbox().as_ref()).await;
        let next = (!complete).then(|| self.strays_due());
        Ok(self
            .update(op, |_, details| {
                details.retired.extend(found);
                details.strays_due = next;
            })
            .await?)
    }

    /// Kills sandboxes that are no longer used; failures are retried later.
    pub(super) async fn kill_retired(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        self.retire_strays(op).await?;
        let retired = self.state().details.retired.clone();
        if retired.is_empty() {
            return Ok(());
        }
        let mut still = Vec::new();
        for place in retired {
            if !self.kill_sandbox(&place).await {
                still.push(place);
            }
        }
        reach(WorkspacePoint::HandoverTornDown).await;
        Ok(self.update(op, |_, details| details.retired = still).await?)
    }
}

/// The result of a search for strays.
pub(super) struct Strays {
    pub(super) found: Vec<SandboxRef>,
    /// Whether every provider answered.
    complete: bool,
}
