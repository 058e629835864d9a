//! Cleans up after interrupted handovers, of this process or an earlier one, and kills sandboxes
//! that are no longer used.

use futures::TryStreamExt;
use sdk::{ListQuery, SandboxId};
use tracing::warn;

use super::core::{Core, METADATA, OpGuard};
use super::details::{Details, Handover, SandboxRef, StopReason};
use super::error::WorkspaceError;
use super::resume::SandboxStatus;
use crate::chain::chain;
use crate::faults::{Point, reach};
use crate::provider::ANSWER_TIMEOUT;
use crate::records::WorkspaceState;

impl Core {
    /// Rolls a failed handover back as far as possible; the next operation does the rest.
    pub(super) async fn roll_back(&self, op: &OpGuard<'_>) {
        if let Err(error) = self.settle(op).await {
            warn!(workspace = %self.name, error = %chain(&error), "a failed handover could not be rolled back yet");
        }
    }

    /// Kills the leftovers of an interrupted handover, of this process or an earlier one.
    /// Afterwards the workspace is in its old sandbox, or in none with its files in a checkpoint.
    pub(super) async fn settle(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        let handover = self.state().details.handover.clone();
        let Some(Handover { old, successor, .. }) = handover else {
            return Ok(self.update(op, |record, _| record.state = settled_state(record.sandbox.is_some())).await?);
        };
        let old_lives = match &old {
            None => false,
            // If unknown, it is still the best candidate; the next inspection decides.
            Some(place) => !matches!(self.inspect_sandbox(place).await, Ok(SandboxStatus::Gone)),
        };
        let kept = old.clone().filter(|_| old_lives);
        let mut retired: Vec<SandboxRef> = successor.into_iter().collect();
        // A sandbox that seems gone is spared too: it may come back, and is recorded as lost below.
        for place in self.find_strays(old.as_ref()).await {
            if !retired.iter().any(|known| known.sandbox == place.sandbox) {
                retired.push(place);
            }
        }
        if let (Some(place), None) = (&old, &kept) {
            self.close_interval(place).await;
        }
        self.update(op, |record, details| {
            record.sandbox = kept.as_ref().map(|place| place.sandbox.clone());
            if let Some(place) = &kept {
                record.provider = place.provider.clone();
            }
            record.state = settled_state(kept.is_some());
            details.stopped = kept.is_none().then_some(StopReason::Lost);
            details.handover = None;
            if let Some(place) = old.filter(|_| kept.is_none()) {
                details.record_lost(place);
            }
            details.retired.extend(retired);
        })
        .await?;
        reach(Point::HandoverSettled).await;
        self.kill_retired(op).await
    }

    /// Sandboxes that carry the workspace's name and are not its own: created by a process that
    /// died before it could record them. Providers that do not answer are left to a sweep.
    pub(super) async fn find_strays(&self, own: Option<&SandboxRef>) -> Vec<SandboxRef> {
        // Compares ids only: one server may have two names.
        let spared: Vec<SandboxId> = {
            let Details { left_behind, lost, .. } = &self.state().details;
            let places = own.into_iter().chain(left_behind).chain(lost);
            places.map(|place| place.sandbox.clone()).collect()
        };
        let mut strays: Vec<SandboxRef> = Vec::new();
        for provider in self.context.providers_used_by(Some(&self.project)).await {
            let Ok(client) = provider.client().await else { continue };
            let query = ListQuery::new().metadata(METADATA, self.name.as_str());
            let rows: Result<Vec<_>, _> = client.within(ANSWER_TIMEOUT).list(query).try_collect().await;
            match rows {
                Ok(rows) => {
                    // Their creator held this lease or an earlier one.
                    let Ok(ledger) = self.context.creations_for(&rows).await else { continue };
                    let ids = rows.iter().filter(|row| ledger.find(row).is_some());
                    for sandbox in ids.filter_map(|row| row.sandbox_id.parse().ok()) {
                        if !spared.contains(&sandbox) && !strays.iter().any(|stray| stray.sandbox == sandbox) {
                            strays.push(SandboxRef { provider: provider.name().clone(), sandbox });
                        }
                    }
                }
                Err(error) => warn!(provider = %provider.name(), %error, "could not list leftover sandboxes"),
            }
        }
        strays
    }

    /// Kills sandboxes that are no longer used; failures are retried later.
    pub(super) async fn kill_retired(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
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
        reach(Point::HandoverTornDown).await;
        Ok(self.update(op, |_, details| details.retired = still).await?)
    }
}

fn settled_state(has_sandbox: bool) -> WorkspaceState {
    if has_sandbox { WorkspaceState::Ready } else { WorkspaceState::Stopped }
}
