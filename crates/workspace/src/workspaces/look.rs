//! What the providers say of the sandboxes that the records name. Neither wakes, extends nor changes anything.

use std::time::Duration;

use futures::StreamExt;
use sdk::model::SandboxState;
use sdk::{Client, SandboxError};
use serde::Serialize;

use super::{WorkspaceView, Workspaces};
use crate::records::WorkspaceState;
use crate::snapshot::FilePath;

/// For a provider to answer somebody who only looks.
const PATIENCE: Duration = Duration::from_secs(4);
/// Asked at the same time.
const AT_ONCE: usize = 16;

/// What became of the sandbox that a record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxCondition {
    Running,
    Paused,
    /// The provider does not have it any more: the newest snapshot has the files.
    Gone,
    /// The provider does not answer, or there is no way to ask it.
    Unreachable,
}

impl Workspaces {
    /// What became of the sandbox of each of these: nothing where the record does not speak of one that runs.
    pub async fn conditions(&self, views: &[WorkspaceView]) -> Vec<Option<SandboxCondition>> {
        let each = views.iter().map(|view| async move {
            let runs = view.state == WorkspaceState::Ready && !view.paused;
            let id = view.sandbox.as_ref().filter(|_| runs)?.parse().ok()?;
            let Ok(provider) = self.house.orchestrator.provider(&view.provider) else {
                return Some(SandboxCondition::Unreachable);
            };
            let asked = async {
                let client: Client = provider.client().await.ok()?;
                match client.within(PATIENCE).look(&id).await {
                    Ok(looked) if looked.detail.listed.state == SandboxState::Paused => Some(SandboxCondition::Paused),
                    Ok(_) => Some(SandboxCondition::Running),
                    Err(SandboxError::NotFound { .. }) => Some(SandboxCondition::Gone),
                    Err(_) => None,
                }
            };
            let answer = tokio::time::timeout(PATIENCE, asked).await.ok().flatten();
            Some(answer.unwrap_or(SandboxCondition::Unreachable))
        });
        futures::stream::iter(each).buffered(AT_ONCE).collect().await
    }

    /// The generated folders that a snapshot of a workspace would leave out now. None unless its sandbox runs and answers in
    /// time; takes no lease.
    pub async fn excluded_folders(&self, view: &WorkspaceView) -> Option<Vec<FilePath>> {
        let id = view.sandbox.as_ref()?.parse().ok()?;
        let provider = self.house.orchestrator.provider(&view.provider).ok()?;
        let asked = async {
            let client: Client = provider.client().await.ok()?;
            let looked = client.within(PATIENCE).look(&id).await.ok()?;
            if looked.detail.listed.state == SandboxState::Paused {
                return None;
            }
            let sandbox = client.attach(&looked.detail).ok()?;
            self.house.snapshots.list_excluded(&sandbox, &self.house.settings.snapshot).await.ok()
        };
        tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
    }
}
