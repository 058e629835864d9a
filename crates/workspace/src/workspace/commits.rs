//! Commits: made for a phase, or by a command in the sandbox. Either way the workspace is
//! checkpointed and an event is emitted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sdk::Sandbox;
use tracing::debug;

use super::core::{OpGuard, SavedFor, WorkspaceCore};
use super::error::WorkspaceError;
use crate::events::EventKind;
use crate::phase::{self, Phase};
use crate::records::RecordChangeError;
use crate::setup::PROJECT_DIRECTORY;
use checkpoint::SavedCheckpoint;

/// The result of a phase's commit.
#[derive(Debug, Clone)]
pub struct PhaseCommit {
    pub phase: Phase,
    /// [`None`] when there was nothing to commit, or when the checkpoint failed, which an event
    /// reports.
    pub checkpoint: Option<SavedCheckpoint>,
}

impl WorkspaceCore {
    pub(super) async fn commit_phase(self: &Arc<Self>, message: &str) -> Result<PhaseCommit, WorkspaceError> {
        let pass = self.enter().await?;
        let phase = phase::commit(pass.sandbox(), PROJECT_DIRECTORY, message).await?;
        drop(pass);
        let checkpoint = match &phase {
            Phase::NothingToCommit { .. } => None,
            Phase::Committed(commit) => {
                let op = self.begin_op().await;
                self.record_commit(&op, &commit.id, Some(message)).await?
            }
        };
        Ok(PhaseCommit { phase, checkpoint })
    }

    /// Detects a commit made since the last check, and handles it like a phase's commit.
    pub(super) async fn detect_commit(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        let Some(attached) = self.attached() else { return Ok(()) };
        if !self.touched.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let sandbox = attached.sandbox.within(self.settings().commit_timeout);
        match self.context.upkeep.head(&sandbox).await {
            Ok(Some(head)) if self.state().details.head.as_ref() != Some(&head) => {
                if !self.store_responds().await {
                    // The next check finds it again.
                    self.touched.store(true, Ordering::Release);
                    return Ok(());
                }
                self.record_commit(op, &head, None).await?;
            }
            Ok(_) => {}
            // Retried after the next use.
            Err(error) => debug!(workspace = %self.name, %error, "could not check for a commit"),
        }
        Ok(())
    }

    /// The commit that came with restored files; it is not new.
    pub(super) async fn head(&self, sandbox: &Sandbox) -> Option<String> {
        self.context.upkeep.head(&sandbox.within(self.settings().commit_timeout)).await.ok().flatten()
    }

    async fn record_commit(
        &self,
        op: &OpGuard<'_>,
        commit: &str,
        message: Option<&str>,
    ) -> Result<Option<SavedCheckpoint>, RecordChangeError> {
        self.update(op, |_, details| details.head = Some(commit.to_owned())).await?;
        let saved = match self.attached() {
            Some(attached) => self.save(op, &attached.sandbox, SavedFor::Phase).await.ok(),
            None => None,
        };
        let message = message.map(|message| self.mask_text(message));
        self.emit(EventKind::PhaseCommitted { commit: commit.to_owned(), message }).await;
        Ok(saved)
    }
}
