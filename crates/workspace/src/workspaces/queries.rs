//! Asks the providers for the sandboxes that the records name. Neither resumes, extends nor changes
//! anything.

use std::time::Duration;

use futures::StreamExt;
use sdk::SandboxError;
use sdk::model::SandboxState;
use serde::Serialize;

use super::{WorkspaceView, Workspaces};
use crate::checkpoint_sandbox::ClientSandbox;
use crate::records::WorkspaceState;
use checkpoint::FilePath;

/// The timeout of a provider for a status query.
const STATUS_TIMEOUT: Duration = Duration::from_secs(4);
/// Concurrent queries.
const AT_ONCE: usize = 16;

/// The state of the sandbox that a record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxCondition {
    Running,
    Paused,
    /// The provider no longer has it: the newest checkpoint has the files.
    Gone,
    /// The provider does not answer, or is not configured.
    Unreachable,
}

impl Workspaces {
    /// The state of each workspace's sandbox; [`None`] where the record names no running one.
    pub async fn conditions(&self, views: &[WorkspaceView]) -> Vec<Option<SandboxCondition>> {
        let each = views.iter().map(|view| async move {
            let runs = view.state == WorkspaceState::Ready && !view.paused;
            let id = view.sandbox.as_ref().filter(|_| runs)?.parse().ok()?;
            let Ok(provider) = self.context.orchestrator.provider(&view.provider) else {
                return Some(SandboxCondition::Unreachable);
            };
            let query = async {
                match provider.service().await.ok()?.inspect(&id).await {
                    Ok(found) if found.state == SandboxState::Paused => Some(SandboxCondition::Paused),
                    Ok(_) => Some(SandboxCondition::Running),
                    Err(SandboxError::NotFound { .. }) => Some(SandboxCondition::Gone),
                    Err(_) => None,
                }
            };
            let answer = tokio::time::timeout(STATUS_TIMEOUT, query).await.ok().flatten();
            Some(answer.unwrap_or(SandboxCondition::Unreachable))
        });
        futures::stream::iter(each).buffered(AT_ONCE).collect().await
    }

    /// The generated folders that a checkpoint of a workspace would exclude now. [`None`] unless
    /// its sandbox runs and answers in time; takes no lease.
    pub async fn excluded_folders(&self, view: &WorkspaceView) -> Option<Vec<FilePath>> {
        let id = view.sandbox.as_ref()?.parse().ok()?;
        let provider = self.context.orchestrator.provider(&view.provider).ok()?;
        let query = async {
            let found = provider.service().await.ok()?.inspect(&id).await.ok()?;
            if found.state == SandboxState::Paused {
                return None;
            }
            let sandbox = ClientSandbox(found.sandbox);
            self.context.checkpoints.list_excluded(&sandbox, &self.context.settings.checkpoint).await.ok()
        };
        tokio::time::timeout(STATUS_TIMEOUT, query).await.ok().flatten()
    }
}
