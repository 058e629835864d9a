//! Clears up after handovers that broke off, in this process or one before it, and ends sandboxes that nobody works in.

use futures::TryStreamExt;
use sdk::{ListQuery, SandboxId};
use tracing::warn;

use super::core::{Core, METADATA, Turn};
use super::details::{Details, Handover, Place, Stopped};
use super::error::WorkspaceError;
use super::wake::Found;
use crate::chain::chain;
use crate::faults::{Point, reach};
use crate::provider::ANSWER_TIME;
use crate::records::WorkspaceState;

impl Core {
    /// Goes back to before a handover that failed, as far as that can be done now; the rest is done by whoever comes next.
    pub(super) async fn undo(&self, turn: &Turn<'_>) {
        if let Err(error) = self.settle(turn).await {
            warn!(workspace = %self.name, error = %chain(&error), "a handover that failed is still to be undone");
        }
    }

    /// Ends what a broken-off handover left, here or in a process before this one. Afterwards the workspace is in its old
    /// sandbox, or in none and its files are in a snapshot.
    pub(super) async fn settle(&self, turn: &Turn<'_>) -> Result<(), WorkspaceError> {
        let handover = self.seat().details.handover.clone();
        let Some(Handover { old, successor, .. }) = handover else {
            return Ok(self.update(turn, |record, _| record.state = settled(record.sandbox.is_some())).await?);
        };
        let old_lives = match &old {
            None => false,
            // Nobody knows: it is still the best there is, and the next look will tell.
            Some(place) => !matches!(self.look(place).await, Ok(Found::Gone)),
        };
        let kept = old.clone().filter(|_| old_lives);
        let mut retired: Vec<Place> = successor.into_iter().collect();
        // Also one that seems gone is spared: it may come back, and is noted as lost below.
        for place in self.strays(old.as_ref()).await {
            if !retired.iter().any(|known| known.sandbox == place.sandbox) {
                retired.push(place);
            }
        }
        if let (Some(place), None) = (&old, &kept) {
            self.close_interval(place).await;
        }
        self.update(turn, |record, details| {
            record.sandbox = kept.as_ref().map(|place| place.sandbox.clone());
            if let Some(place) = &kept {
                record.provider = place.provider.clone();
            }
            record.state = settled(kept.is_some());
            details.stopped = kept.is_none().then_some(Stopped::Lost);
            details.handover = None;
            if let Some(place) = old.filter(|_| kept.is_none()) {
                details.note_lost(place);
            }
            details.retired.extend(retired);
        })
        .await?;
        reach(Point::HandoverSettled).await;
        self.end_retired(turn).await
    }

    /// Sandboxes that carry the workspace's name and are not its own: made by a process that died before it could note
    /// them. Providers that do not answer are left for a sweep.
    pub(super) async fn strays(&self, own: Option<&Place>) -> Vec<Place> {
        // Ids decide: one server may have two names.
        let spared: Vec<SandboxId> = {
            let Details { left_behind, lost, .. } = &self.seat().details;
            let places = own.into_iter().chain(left_behind).chain(lost);
            places.map(|place| place.sandbox.clone()).collect()
        };
        let mut strays: Vec<Place> = Vec::new();
        for provider in self.house.asked_for(Some(&self.project)).await {
            let Ok(client) = provider.client().await else { continue };
            let query = ListQuery::new().metadata(METADATA, self.name.as_str());
            let rows: Result<Vec<_>, _> = client.within(ANSWER_TIME).list(query).try_collect().await;
            match rows {
                Ok(rows) => {
                    // Whoever made one had this lease or one before it.
                    let Ok(ledger) = self.house.creations_of(&rows).await else { continue };
                    let ids = rows.iter().filter(|row| ledger.of(row).is_some());
                    for sandbox in ids.filter_map(|row| row.sandbox_id.parse().ok()) {
                        if !spared.contains(&sandbox) && !strays.iter().any(|stray| stray.sandbox == sandbox) {
                            strays.push(Place { provider: provider.name().clone(), sandbox });
                        }
                    }
                }
                Err(error) => warn!(provider = %provider.name(), %error, "left-over sandboxes were not looked for"),
            }
        }
        strays
    }

    /// Ends sandboxes that nobody works in any more; what cannot be ended now is tried again later.
    pub(super) async fn end_retired(&self, turn: &Turn<'_>) -> Result<(), WorkspaceError> {
        let retired = self.seat().details.retired.clone();
        if retired.is_empty() {
            return Ok(());
        }
        let mut still = Vec::new();
        for place in retired {
            if !self.end(&place).await {
                still.push(place);
            }
        }
        reach(Point::HandoverTornDown).await;
        Ok(self.update(turn, |_, details| details.retired = still).await?)
    }
}

fn settled(has_sandbox: bool) -> WorkspaceState {
    if has_sandbox { WorkspaceState::Ready } else { WorkspaceState::Stopped }
}
