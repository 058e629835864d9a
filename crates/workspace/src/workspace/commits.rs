//! Commits: made for a phase, or by the agent in a command of its own. Either way the files are saved and somebody is told.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sdk::Sandbox;
use tracing::debug;

use super::core::{Core, SavedFor, Turn};
use super::error::WorkspaceError;
use crate::events::EventKind;
use crate::phase::{self, Phase};
use crate::records::ChangeError;
use crate::setup::PROJECT_DIRECTORY;
use crate::snapshot::Saved;

/// What came of a phase's commit.
#[derive(Debug, Clone)]
pub struct PhaseCommit {
    pub phase: Phase,
    /// None when there was nothing to commit, or when no snapshot could be stored, of which an event tells.
    pub snapshot: Option<Saved>,
}

impl Core {
    pub(super) async fn commit_phase(self: &Arc<Self>, message: &str) -> Result<PhaseCommit, WorkspaceError> {
        let pass = self.enter().await?;
        let phase = phase::commit(pass.sandbox(), PROJECT_DIRECTORY, message).await?;
        drop(pass);
        let snapshot = match &phase {
            Phase::NothingToCommit { .. } => None,
            Phase::Committed(commit) => {
                let turn = self.turn().await;
                self.committed(&turn, &commit.id, Some(message)).await?
            }
        };
        Ok(PhaseCommit { phase, snapshot })
    }

    /// Whether somebody committed since the last look; treated like a phase's commit.
    pub(super) async fn look_for_commit(&self, turn: &Turn<'_>) -> Result<(), WorkspaceError> {
        let Some(attached) = self.attached() else { return Ok(()) };
        if !self.touched.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let sandbox = attached.sandbox.within(self.settings().commit_patience);
        match phase::head(&sandbox, PROJECT_DIRECTORY).await {
            Ok(Some(head)) if self.seat().details.head.as_ref() != Some(&head) => {
                if !self.store_answers().await {
                    // It is found again by the next look.
                    self.touched.store(true, Ordering::Release);
                    return Ok(());
                }
                self.committed(turn, &head, None).await?;
            }
            Ok(_) => {}
            // It is looked for again after the next work.
            Err(error) => debug!(workspace = %self.name, %error, "no look for a commit"),
        }
        Ok(())
    }

    /// The commit that came with files from a snapshot, which nobody has just made.
    pub(super) async fn head(&self, sandbox: &Sandbox) -> Option<String> {
        phase::head(&sandbox.within(self.settings().commit_patience), PROJECT_DIRECTORY).await.ok().flatten()
    }

    async fn committed(
        &self,
        turn: &Turn<'_>,
        commit: &str,
        message: Option<&str>,
    ) -> Result<Option<Saved>, ChangeError> {
        self.update(turn, |_, details| details.head = Some(commit.to_owned())).await?;
        let saved = match self.attached() {
            Some(attached) => self.save(turn, &attached.sandbox, SavedFor::Phase).await.ok(),
            None => None,
        };
        let message = message.map(|message| self.hidden(message));
        self.tell(EventKind::PhaseCommitted { commit: commit.to_owned(), message }).await;
        Ok(saved)
    }
}
