//! A workspace as the loop sees it: what keeps its work, and what takes its pictures.

use crate::screenshots::Pictures;
use agent::{Committed, Workplace, WorkplaceError};
use async_trait::async_trait;
use browser::store::Occasion;
use std::error::Error;
use std::sync::Arc;
use tools::{Capture, CaptureError, Screenshots, Shots};
use workspace::Workspace;
use workspace::phase::Phase;

pub(super) struct OnWorkspace {
    pub(super) workspace: Workspace,
    pub(super) pictures: Arc<Pictures>,
    pub(super) preview_port: u16,
}

fn cannot<E: Error + Send + Sync + 'static>(what: &'static str) -> impl Fn(E) -> WorkplaceError {
    move |error| WorkplaceError { what, source: Box::new(error) }
}

#[async_trait]
impl Workplace for OnWorkspace {
    async fn save(&self) -> Result<Option<String>, WorkplaceError> {
        let saved = self.workspace.snapshot().await.map_err(cannot("save a snapshot"))?;
        Ok(Some(saved.stamp.to_string()))
    }

    async fn pause(&self) -> Result<(), WorkplaceError> {
        self.workspace.pause().await.map_err(cannot("pause the sandbox"))
    }

    async fn commit_phase(&self, message: &str) -> Result<Committed, WorkplaceError> {
        let committed = self.workspace.commit_phase(message).await.map_err(cannot("commit the phase"))?;
        let commit = match committed.phase {
            Phase::Committed(commit) => Some(commit.id),
            Phase::NothingToCommit { head } => head,
        };
        let occasion = Occasion::Commit { id: commit.clone().unwrap_or_else(|| "none".to_owned()) };
        // A phase without a page to show is a phase all the same.
        let capture = Capture { port: self.preview_port, url_path: "/".to_owned(), full_page: false };
        let shots = self.take(&occasion, capture).await.map(|shots| shots.shots).unwrap_or_default();
        let screenshots = shots.into_iter().map(|shot| shot.url).collect();
        Ok(Committed { commit, snapshot: committed.snapshot.map(|saved| saved.stamp.to_string()), screenshots })
    }

    fn mask(&self, text: &str) -> String {
        self.workspace.mask(text)
    }
}

#[async_trait]
impl Screenshots for OnWorkspace {
    async fn capture(&self, capture: Capture) -> Result<Shots, CaptureError> {
        self.take(&Occasion::Agent { at: jiff::Timestamp::now() }, capture).await
    }
}

impl OnWorkspace {
    async fn take(&self, occasion: &Occasion, capture: Capture) -> Result<Shots, CaptureError> {
        let pass = self.workspace.enter().await.map_err(|error| CaptureError::Failed(error.to_string()))?;
        self.pictures.capture(pass.sandbox(), self.workspace.name().as_str(), occasion, capture).await
    }
}
