//! Pause, the end of a workspace's lifetime, and its destruction: first the files, then the
//! sandbox.

use std::time::Duration;

use futures::future::join_all;
use sdk::{PauseOutcome, Sandbox};
use tracing::{info, warn};

use super::core::{OpGuard, SavedFor, WorkspaceCore};
use super::details::{Details, NoSandbox, SandboxRef};
use super::error::{Unavailable, WorkspaceError};
use super::resume::SandboxStatus;
use crate::events::EventKind;
use crate::faults::{WorkspacePoint, reach};
use crate::ledger::Limit;
use crate::records::WorkspaceState;
use checkpoint::{SavedCheckpoint, Stamp};
use text::error_chain;

/// What to do with unsaved changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsaved {
    /// Save them; keep the workspace unchanged when that fails.
    Keep,
    /// Save them if possible; else they are lost.
    Discard,
    /// Do not save them.
    Unwanted,
}

/// The effort for a checkpoint before a pause, which keeps the files too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saving {
    /// As for any other checkpoint.
    Patient,
    /// With a timeout: the sandbox's end is near.
    Within(Duration),
    /// It was already tried.
    None,
}

impl WorkspaceCore {
    /// Pauses the sandbox. Pausing a paused one succeeds.
    pub(super) async fn pause(&self) -> Result<(), WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        self.pause_locked(&op, Saving::Patient).await
    }

    pub(super) async fn pause_locked(&self, op: &OpGuard<'_>, saving: Saving) -> Result<(), WorkspaceError> {
        let (state, paused) = {
            let state = self.state();
            (state.record.state, state.record.paused)
        };
        match state {
            WorkspaceState::SettingUp => return Err(Unavailable::NotSetUp(self.name.clone()).into()),
            WorkspaceState::Moving => self.settle(op).await?,
            // Without a sandbox nothing is running.
            WorkspaceState::Stopped => return Ok(()),
            WorkspaceState::Ready => {}
        }
        let Some(place) = self.current_sandbox() else { return Ok(()) };
        let closed = self.gate.close();
        reach(WorkspacePoint::PauseGateClosed).await;
        let sandbox = match self.inspect_sandbox(&place).await? {
            SandboxStatus::Running { sandbox, .. } => sandbox,
            SandboxStatus::Paused { .. } if paused => return Ok(()),
            SandboxStatus::Paused { .. } => return self.record_paused(op, &place, None).await,
            SandboxStatus::Gone => {
                self.record_gone(op, &place).await?;
                return Err(WorkspaceError::Lost { workspace: self.name.clone(), sandbox: place.sandbox });
            }
        };
        closed.drain(self.settings().drain_timeout).await;
        // A pause keeps the files too, so it proceeds when the checkpoint fails.
        let saved = match saving {
            Saving::Patient => self.save_found(op, &sandbox).await.ok(),
            Saving::Within(time) => {
                tokio::time::timeout(time, self.save_found(op, &sandbox)).await.ok().and_then(Result::ok)
            }
            Saving::None => None,
        };
        let saved = saved.map(|saved| saved.stamp);
        reach(WorkspacePoint::PauseSaved).await;
        let outcome = self.service(&place.provider).await?.pause(&place.sandbox).await?;
        if outcome == PauseOutcome::AlreadyPaused {
            info!(workspace = %self.name, "the sandbox was already paused");
        }
        reach(WorkspacePoint::PausePaused).await;
        self.record_paused(op, &place, saved).await
    }

    /// Saves and pauses a workspace whose limit is used up.
    pub(super) async fn pause_for_budget(&self, op: &OpGuard<'_>, limit: Limit) -> Result<(), WorkspaceError> {
        warn!(workspace = %self.name, "{limit} is used up: the workspace is saved and paused");
        self.emit(EventKind::LimitReached { limit }).await;
        self.pause_locked(op, Saving::Patient).await
    }

    /// Records that the sandbox is paused.
    pub(super) async fn record_paused(
        &self,
        op: &OpGuard<'_>,
        place: &SandboxRef,
        saved: Option<Stamp>,
    ) -> Result<(), WorkspaceError> {
        self.detach();
        self.update(op, |record, details| {
            record.paused = true;
            details.saved_at_pause = saved;
            details.run = None;
        })
        .await?;
        reach(WorkspacePoint::PauseNoted).await;
        self.close_interval(place).await;
        self.emit(EventKind::Paused { sandbox: place.sandbox.to_string() }).await;
        Ok(())
    }

    /// The workspace's lifetime is over: saves its files and kills its sandbox. A restore brings it
    /// back.
    pub(super) async fn stop_locked(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        let closed = self.gate.close();
        closed.drain(self.settings().drain_timeout).await;
        self.save_last(op).await?;
        let place = self.current_sandbox();
        self.detach();
        self.update(op, |record, details| {
            record.state = WorkspaceState::Stopped;
            record.sandbox = None;
            record.paused = false;
            details.stopped = Some(NoSandbox::TimeOver);
            details.saved_at_pause = None;
            details.run = None;
            details.retired.extend(place);
        })
        .await?;
        self.kill_retired(op).await?;
        self.emit(EventKind::Stopped { reason: "its time is over".to_owned() }).await;
        Ok(())
    }

    /// Makes sure that a checkpoint has the files, before the caller kills the sandbox.
    pub(super) async fn keep_files(&self) -> Result<Option<Stamp>, WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let state = self.state().record.state;
        match state {
            // Setup is not complete, so there are no changes to lose.
            WorkspaceState::SettingUp | WorkspaceState::Stopped => return Ok(None),
            WorkspaceState::Moving => self.settle(&op).await?,
            WorkspaceState::Ready => {}
        }
        let closed = self.gate.close();
        closed.drain(self.settings().drain_timeout).await;
        self.save_last(&op).await
    }

    /// Saves the files before the sandbox is killed, unless a checkpoint already has them. [`None`]
    /// when there are none.
    async fn save_last(&self, op: &OpGuard<'_>) -> Result<Option<Stamp>, WorkspaceError> {
        let Some(place) = self.current_sandbox() else { return Ok(None) };
        match self.inspect_sandbox(&place).await? {
            SandboxStatus::Gone => Ok(None),
            SandboxStatus::Running { sandbox, .. } => Ok(Some(self.save_found(op, &sandbox).await?.stamp)),
            SandboxStatus::Paused { .. } => {
                if let Some(stamp) = self.state().details.saved_at_pause {
                    return Ok(Some(stamp));
                }
                self.ensure_ready(op).await?;
                let Some(attached) = self.attached() else { return Ok(None) };
                Ok(Some(self.save(op, &attached.sandbox, SavedFor::Stop).await?.stamp))
            }
        }
    }

    /// Saves a sandbox that was found running, before it stops. Another client may have resumed it
    /// after its host lost power: a checkpoint of the older files would hide the loss.
    async fn save_found(&self, op: &OpGuard<'_>, sandbox: &Sandbox) -> Result<SavedCheckpoint, WorkspaceError> {
        if self.attached().is_none_or(|attached| attached.sandbox.id() != sandbox.id()) {
            self.restore_if_lost(op, sandbox).await?;
        }
        Ok(self.save(op, sandbox, SavedFor::Stop).await?)
    }

    /// Saves the files, kills the sandbox and removes the workspace. Its checkpoints stay.
    pub(super) async fn destroy(&self, unsaved: Unsaved) -> Result<Option<Stamp>, WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let state = self.state().record.state;
        if state == WorkspaceState::Moving {
            self.settle(&op).await?;
        }
        let closed = self.gate.close();
        closed.drain(self.settings().drain_timeout).await;
        let checkpoint = match state {
            // Setup is not complete, so there are no changes to lose.
            WorkspaceState::SettingUp => None,
            _ if unsaved == Unsaved::Unwanted => None,
            _ => match self.save_last(&op).await {
                Ok(stamp) => stamp,
                Err(error) if unsaved == Unsaved::Keep => return Err(error),
                Err(error) => {
                    warn!(workspace = %self.name, error = %error_chain(&error), "destroyed without its last changes");
                    None
                }
            },
        };
        reach(WorkspacePoint::DestroySaved).await;
        let place = self.current_sandbox();
        self.detach();
        self.update(&op, |record, details| {
            record.state = WorkspaceState::Stopped;
            record.sandbox = None;
            record.paused = false;
            details.stopped = Some(NoSandbox::TimeOver);
            details.saved_at_pause = None;
            details.retired.extend(place);
        })
        .await?;
        self.kill_retired(&op).await?;
        reach(WorkspacePoint::DestroyEnded).await;
        self.kill_left_behind().await;
        let still = self.state().details.retired.first().cloned();
        if let (Some(place), Unsaved::Keep | Unsaved::Unwanted) = (still, unsaved) {
            // Only the record knows of this sandbox, so it is kept.
            let reason = "it could not be ended; destroy the workspace again".to_owned();
            let SandboxRef { provider, sandbox: id } = place;
            return Err(Unavailable::Unreachable { workspace: self.name.clone(), id, provider, reason }.into());
        }
        self.write_tombstone().await;
        self.context.records.remove_workspace(&self.held_lease.lease()).await?;
        self.emit(EventKind::Destroyed { checkpoint }).await;
        Ok(checkpoint)
    }

    /// Tries to kill the sandboxes that were left behind or lost, except those that another
    /// workspace has adopted. A failure is logged; once the record is removed, a sweep treats them
    /// as orphans.
    async fn kill_left_behind(&self) {
        let places: Vec<SandboxRef> = {
            let Details { left_behind, lost, .. } = &self.state().details;
            left_behind.iter().chain(lost).cloned().collect()
        };
        if places.is_empty() {
            return;
        }
        let others = match self.context.records.workspaces_and_unreadable().await {
            Ok((records, unreadable)) if unreadable.is_empty() => records,
            Ok((_, unreadable)) => {
                let unreadable = unreadable.join(", ");
                return warn!(workspace = %self.name, unreadable, "lost sandboxes are not killed: rows cannot be read");
            }
            Err(error) => {
                return warn!(workspace = %self.name, error = %error_chain(&error), "lost sandboxes are not killed");
            }
        };
        let is_adopted = |place: &&SandboxRef| {
            others.iter().any(|other| other.name != self.name && other.sandbox.as_ref() == Some(&place.sandbox))
        };
        join_all(places.iter().filter(|place| !is_adopted(place)).map(|place| self.kill_sandbox(place))).await;
    }
}
