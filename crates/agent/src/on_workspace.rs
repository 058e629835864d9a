//! A workspace as the loop sees it: what keeps its work.

use std::error::Error;

use async_trait::async_trait;
use workspace::Workspace;
use workspace::phase::Phase;

use crate::workplace::{Committed, Workplace, WorkplaceError};

/// A workspace that this process has.
pub struct OnWorkspace(pub Workspace);

fn cannot<E: Error + Send + Sync + 'static>(what: &'static str) -> impl Fn(E) -> WorkplaceError {
    move |error| WorkplaceError { what, source: Box::new(error) }
}

#[async_trait]
impl Workplace for OnWorkspace {
    async fn save(&self) -> Result<Option<String>, WorkplaceError> {
        let saved = self.0.snapshot().await.map_err(cannot("save a snapshot"))?;
        Ok(Some(saved.stamp.to_string()))
    }

    async fn pause(&self) -> Result<(), WorkplaceError> {
        self.0.pause().await.map_err(cannot("pause the sandbox"))
    }

    /// The pictures are taken by whoever hears of the commit.
    async fn commit_phase(&self, message: &str) -> Result<Committed, WorkplaceError> {
        let committed = self.0.commit_phase(message).await.map_err(cannot("commit the phase"))?;
        let commit = match committed.phase {
            Phase::Committed(commit) => Some(commit.id),
            Phase::NothingToCommit { head } => head,
        };
        Ok(Committed { commit, snapshot: committed.snapshot.map(|saved| saved.stamp.to_string()) })
    }

    fn mask(&self, text: &str) -> String {
        self.0.mask(text)
    }
}
