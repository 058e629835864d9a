//! What the loop asks of the workspace behind the tools. The tools do the work; this keeps it.

use std::error::Error;

use async_trait::async_trait;

/// What could not be kept, and why. The run goes on without it and says so.
#[derive(Debug, thiserror::Error)]
#[error("could not {what}")]
pub struct WorkplaceError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

/// A phase as it was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Committed {
    /// None when there was nothing to commit.
    pub commit: Option<String>,
    pub snapshot: Option<String>,
}

/// Where a run works.
#[async_trait]
pub trait Workplace: Send + Sync {
    /// Keeps the files where they outlive the sandbox, and says under which name. Nothing where nothing outlives it.
    async fn save(&self) -> Result<Option<String>, WorkplaceError>;

    /// Lets the sandbox sleep; the next tool call wakes it.
    async fn pause(&self) -> Result<(), WorkplaceError>;

    /// Keeps a finished phase, and has pictures taken of it. Doing it twice keeps it once.
    async fn commit_phase(&self, message: &str) -> Result<Committed, WorkplaceError>;

    /// The text without the secrets that the sandbox was given.
    fn mask(&self, text: &str) -> String;
}

/// A place that keeps nothing: a plain sandbox, or memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainWorkplace;

#[async_trait]
impl Workplace for PlainWorkplace {
    async fn save(&self) -> Result<Option<String>, WorkplaceError> {
        Ok(None)
    }

    async fn pause(&self) -> Result<(), WorkplaceError> {
        Ok(())
    }

    async fn commit_phase(&self, _message: &str) -> Result<Committed, WorkplaceError> {
        Ok(Committed::default())
    }

    fn mask(&self, text: &str) -> String {
        text.to_owned()
    }
}
