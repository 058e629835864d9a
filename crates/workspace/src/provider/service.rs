//! What a workspace asks of a provider for the life of its sandboxes, and the adapter over the E2B
//! client. Commands and files go through the [`Sandbox`] that it hands out.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::TryStreamExt;
use jiff::Timestamp;
use sdk::model::{Capabilities, SandboxState};
use sdk::{
    CallError, Client, Connect, Create, CreateError, ListQuery, Pause, PauseOutcome, Sandbox, SandboxError, SandboxId,
};
use uuid::Uuid;

use super::ANSWER_TIMEOUT;
use crate::records::Size;
use crate::workspace::WORKSPACE_ID;

/// A service at its limit may ask for a longer delay; then the next provider is tried.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The sandboxes of a provider. A caller that drops a future stops waiting; the provider may still
/// do what it was asked for.
#[async_trait]
pub(crate) trait SandboxService: Send + Sync {
    /// The extensions of a Sandbar server; [`None`] at other services.
    async fn capabilities(&self) -> Result<Option<Capabilities>, CallError>;

    /// Creates a sandbox, and waits until it runs. Without a timeout it waits as long as for any
    /// call.
    async fn create(
        &self,
        create: Create,
        metadata: &BTreeMap<String, String>,
        timeout: Option<Duration>,
    ) -> Result<Sandbox, CreateError>;

    /// Neither resumes nor extends the sandbox.
    async fn inspect(&self, id: &SandboxId) -> Result<Inspected, SandboxError>;

    /// Resumes a paused sandbox. A running one is extended, never shortened.
    async fn connect(&self, id: &SandboxId, lifetime: Duration) -> Result<Sandbox, SandboxError>;

    /// Sets the remaining lifetime.
    async fn set_timeout(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError>;

    /// Pausing a paused sandbox succeeds.
    async fn pause(&self, id: &SandboxId) -> Result<PauseOutcome, SandboxError>;

    /// Killing an absent sandbox succeeds.
    async fn kill(&self, id: &SandboxId) -> Result<(), CallError>;

    /// The sandboxes whose metadata has this pair; without one, all of the key.
    async fn list(&self, metadata: Option<(&str, &str)>) -> Result<Vec<ListedSandbox>, CallError>;
}

/// A sandbox and what its provider says of it. All times are of the provider's clock.
#[derive(Debug)]
pub(crate) struct Inspected {
    pub(crate) sandbox: Sandbox,
    pub(crate) state: SandboxState,
    pub(crate) size: Size,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ends_at: Option<Timestamp>,
    /// In whole seconds; [`None`] when the response has no date.
    pub(crate) answered_at: Option<Timestamp>,
}

/// A sandbox in a list.
#[derive(Debug, Clone)]
pub(crate) struct ListedSandbox {
    pub(crate) id: SandboxId,
    pub(crate) state: SandboxState,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) started_at: Option<Timestamp>,
}

impl ListedSandbox {
    /// The id of the workspace that it was created for, if it carries one.
    pub(crate) fn workspace_id(&self) -> Option<Uuid> {
        self.metadata.get(WORKSPACE_ID)?.parse().ok()
    }
}

#[async_trait]
impl SandboxService for Client {
    async fn capabilities(&self) -> Result<Option<Capabilities>, CallError> {
        self.within(ANSWER_TIMEOUT).capabilities().await
    }

    async fn create(
        &self,
        create: Create,
        metadata: &BTreeMap<String, String>,
        timeout: Option<Duration>,
    ) -> Result<Sandbox, CreateError> {
        let create = metadata.iter().fold(create, |create, (key, value)| create.metadata(key, value));
        let client = timeout.map_or_else(|| self.clone(), |timeout| self.within(timeout));
        client.with_max_backoff(MAX_RETRY_DELAY).create(create).await
    }

    async fn inspect(&self, id: &SandboxId) -> Result<Inspected, SandboxError> {
        let found = self.within(ANSWER_TIMEOUT).inspect(id).await?;
        let listed = &found.detail.listed;
        Ok(Inspected {
            sandbox: self.attach(&found.detail)?,
            state: listed.state,
            size: Size { cpu_count: listed.cpu_count, memory_mb: listed.memory_mb, disk_mb: listed.disk_size_mb },
            started_at: listed.started_at.parse().ok(),
            ends_at: listed.end_at.parse().ok(),
            answered_at: found.answered_at,
        })
    }

    async fn connect(&self, id: &SandboxId, lifetime: Duration) -> Result<Sandbox, SandboxError> {
        Self::connect(self, id, Connect::timeout(lifetime)).await
    }

    async fn set_timeout(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError> {
        self.within(ANSWER_TIMEOUT).set_timeout(id, lifetime).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<PauseOutcome, SandboxError> {
        Self::pause(self, id, Pause::with_memory()).await
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), CallError> {
        self.within(ANSWER_TIMEOUT).kill(id).await.map(drop)
    }

    async fn list(&self, metadata: Option<(&str, &str)>) -> Result<Vec<ListedSandbox>, CallError> {
        let query = metadata.map_or_else(ListQuery::new, |(key, value)| ListQuery::new().metadata(key, value));
        let rows = self.within(ANSWER_TIMEOUT).list(query);
        let parse = |row: sdk::model::ListedSandbox| async move {
            let started_at = row.started_at.parse().ok();
            let id = row.sandbox_id.parse().ok();
            Ok(id.map(|id| ListedSandbox { id, state: row.state, metadata: row.metadata, started_at }))
        };
        rows.try_filter_map(parse).try_collect().await
    }
}
