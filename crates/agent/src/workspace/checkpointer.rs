//! Implements the checkpointer with a workspace.

use std::error::Error;

use ::workspace::Workspace;
use ::workspace::phase::Phase;
use async_trait::async_trait;

use crate::checkpoint::{CheckpointError, Checkpointer, PhaseCheckpoint};

/// Checkpoints of a workspace whose lease this process holds.
pub struct WorkspaceCheckpointer(pub Workspace);

fn cannot<E: Error + Send + Sync + 'static>(what: &'static str) -> impl Fn(E) -> CheckpointError {
    move |error| CheckpointError { what, source: Box::new(error) }
}

#[async_trait]
impl Checkpointer for WorkspaceCheckpointer {
    async fn save(&self) -> Result<Option<String>, CheckpointError> {
        let saved = self.0.save_checkpoint().await.map_err(cannot("save a snapshot"))?;
        Ok(Some(saved.stamp.to_string()))
    }

    async fn pause(&self) -> Result<(), CheckpointError> {
        self.0.pause().await.map_err(cannot("pause the sandbox"))
    }

    /// An observer of the workspace's commit event takes the screenshots.
    async fn commit_phase(&self, message: &str) -> Result<PhaseCheckpoint, CheckpointError> {
        let committed = self.0.commit_phase(message).await.map_err(cannot("commit the phase"))?;
        let commit = match committed.phase {
            Phase::Committed(commit) => Some(commit.id),
            Phase::NothingToCommit { head } => head,
        };
        Ok(PhaseCheckpoint { commit, snapshot: committed.checkpoint.map(|saved| saved.stamp.to_string()) })
    }

    fn mask(&self, text: &str) -> String {
        self.0.mask(text)
    }
}
