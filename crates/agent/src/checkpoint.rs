//! Port for saving a run's work: the tools change files, a checkpointer persists them.

use std::error::Error;

use async_trait::async_trait;

/// A checkpoint that failed, and why. The run continues without it and reports the error.
#[derive(Debug, thiserror::Error)]
#[error("could not {what}")]
pub struct CheckpointError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

/// The checkpoint of a finished phase.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PhaseCheckpoint {
    /// `None` if there was nothing to commit.
    pub commit: Option<String>,
    pub snapshot: Option<String>,
}

/// Saves the work of a run.
#[async_trait]
pub trait Checkpointer: Send + Sync {
    /// Saves the files outside the sandbox and returns the name of the checkpoint; `None` if there
    /// is no such storage.
    ///
    /// # Errors
    /// [`CheckpointError`] if the files could not be saved.
    async fn save(&self) -> Result<Option<String>, CheckpointError>;

    /// Pauses the sandbox; the next tool call resumes it.
    ///
    /// # Errors
    /// [`CheckpointError`] if the sandbox could not be paused.
    async fn pause(&self) -> Result<(), CheckpointError>;

    /// Commits a finished phase and triggers screenshots of it. Idempotent.
    ///
    /// # Errors
    /// [`CheckpointError`] if the commit failed.
    async fn commit_phase(&self, message: &str) -> Result<PhaseCheckpoint, CheckpointError>;

    /// Masks the sandbox's secrets in a text.
    fn mask(&self, text: &str) -> String;
}

/// Saves nothing: for a plain sandbox, or one in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCheckpoints;

#[async_trait]
impl Checkpointer for NoCheckpoints {
    async fn save(&self) -> Result<Option<String>, CheckpointError> {
        Ok(None)
    }

    async fn pause(&self) -> Result<(), CheckpointError> {
        Ok(())
    }

    async fn commit_phase(&self, _message: &str) -> Result<PhaseCheckpoint, CheckpointError> {
        Ok(PhaseCheckpoint::default())
    }

    fn mask(&self, text: &str) -> String {
        text.to_owned()
    }
}
