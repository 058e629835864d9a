//! All workspaces in the records: create, open, list; and orphaned sandboxes that no record names.

mod maintenance;
mod orphans;
mod queries;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use database::Unwritable;
use jiff::Timestamp;
use parking_lot::Mutex;
use sdk::SandboxId;
use serde::Serialize;

use crate::context::{Parts, WorkspaceContext};
use crate::devserver::DevServer;
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::{Limits, Orchestrator, SkippedProvider};
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::setup::Setup;
use crate::workspace::{
    Details, HeldLease, Inner, OpenError, SandboxRef, SetUp, SetupError, Workspace, WorkspaceCore, dev_server,
    read_details,
};
use checkpoint::{Checkpoints, ListedCheckpoint, ObjectStoreError, ProjectId, Restored, Stamp};

pub use maintenance::{Maintained, MaintenanceOutcome};
pub(crate) use orphans::CREATION_TIMEOUT;
pub use orphans::{ORPHAN_GRACE, Orphan, Swept};
pub use queries::SandboxCondition;
pub use server::OwnServer;

/// The workspaces of a program. Cheap to clone.
#[derive(Clone)]
pub struct Workspaces {
    context: Arc<WorkspaceContext>,
    /// Those that this process holds.
    slots: Arc<Mutex<BTreeMap<WorkspaceName, Slot>>>,
}

/// One workspace in this process. The opener locks it, so that concurrent openers get the same one.
type Slot = Arc<tokio::sync::Mutex<Weak<Inner>>>;

/// A created workspace.
#[derive(Debug)]
pub struct CreatedWorkspace {
    pub workspace: Workspace,
    pub project: ProjectId,
    pub provider: ProviderName,
    pub sandbox: Option<SandboxId>,
    /// The preferred providers that were skipped.
    pub skipped: Vec<SkippedProvider>,
    pub limits: Limits,
    /// The restored checkpoint, if the project had one; then the steps of the setup were skipped.
    pub restored: Option<Restored>,
}

/// A workspace as recorded. Reading it sends no request and resumes nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkspaceView {
    pub workspace: WorkspaceName,
    pub project_id: ProjectId,
    pub state: WorkspaceState,
    pub paused: bool,
    #[serde(rename = "sandboxID")]
    pub sandbox: Option<String>,
    pub provider: ProviderName,
    pub template: Option<String>,
    /// Restarted in every new sandbox.
    pub dev_server: Option<DevServer>,
    pub created_at: Timestamp,
    /// The end of the workspace itself.
    pub expires_at: Timestamp,
    /// The end of its sandbox, as last known; extended on use.
    pub sandbox_ends_at: Option<Timestamp>,
    /// Sandboxes that could not be reached when the workspace continued in another one. They may
    /// hold changes that exist nowhere else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<Abandoned>,
    /// When its files were last saved, or found unchanged in the newest checkpoint.
    pub saved_at: Option<Timestamp>,
    /// Whether checkpoints may contain values of its variables.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_env_values: bool,
}

/// A former sandbox of a workspace that was not killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Abandoned {
    pub provider: ProviderName,
    #[serde(rename = "sandboxID")]
    pub sandbox: String,
}

impl WorkspaceView {
    fn new(record: &WorkspaceRecord, details: &Details) -> Self {
        Self {
            workspace: record.name.clone(),
            project_id: record.project.clone(),
            state: record.state,
            paused: record.paused,
            sandbox: record.sandbox.as_ref().map(ToString::to_string),
            provider: record.provider.clone(),
            template: record.template.clone(),
            dev_server: dev_server(record),
            created_at: record.created_at,
            expires_at: record.expires_at,
            sandbox_ends_at: details.run.map(|run| run.ends_at),
            left_behind: details.left_behind.iter().map(Abandoned::from).collect(),
            saved_at: details.saved_at,
            allow_env_values: details.allow_env_values,
        }
    }
}

impl From<&SandboxRef> for Abandoned {
    fn from(SandboxRef { provider, sandbox }: &SandboxRef) -> Self {
        Self { provider: provider.clone(), sandbox: sandbox.to_string() }
    }
}

impl Workspaces {
    pub fn new(parts: Parts) -> Self {
        Self { context: Arc::new(parts.into()), slots: Arc::default() }
    }

    #[cfg(test)]
    pub(crate) fn from_context(context: WorkspaceContext) -> Self {
        Self { context: Arc::new(context), slots: Arc::default() }
    }

    /// Why the records reject changes at the moment, if they do. Does no I/O.
    pub fn fault(&self) -> Option<Unwritable> {
        self.context.records.fault()
    }

    pub fn orchestrator(&self) -> &Orchestrator {
        &self.context.orchestrator
    }

    pub fn ledger(&self) -> &Ledger {
        &self.context.ledger
    }

    pub fn checkpoints(&self) -> &Checkpoints {
        &self.context.checkpoints
    }

    /// Creates a workspace. After a failure, or when the process was killed, calling again
    /// continues with the failed step.
    ///
    /// If the project already has checkpoints, from an earlier workspace of the same name, the
    /// newest is restored instead of running the setup, and so is its dev server unless the setup
    /// declares one.
    ///
    /// # Errors
    /// [`SetupError`] names the step that failed.
    pub async fn create(&self, name: &WorkspaceName, setup: Setup) -> Result<CreatedWorkspace, SetupError> {
        let slot = self.slot(name);
        let mut slot = slot.lock().await;
        let core = WorkspaceCore::begin(Arc::clone(&self.context), name, &setup).await?;
        match core.set_up(&setup).await {
            Ok(SetUp { skipped, limits, restored }) => {
                let workspace = Workspace::start(core);
                *slot = Arc::downgrade(workspace.inner());
                let (project, provider) = (workspace.project().clone(), workspace.provider());
                let sandbox = workspace.sandbox_id();
                Ok(CreatedWorkspace { workspace, project, provider, sandbox, skipped, limits, restored })
            }
            Err(error) => {
                core.remove_if_unused().await;
                core.release().await;
                Err(error)
            }
        }
    }

    /// Takes the lease of a workspace: no other process can act on it until it is closed. Inspects
    /// and resumes no sandbox.
    ///
    /// # Errors
    /// [`OpenError::Held`] when another process does not release it in time,
    /// [`OpenError::NotFound`], [`OpenError::Damaged`] or [`OpenError::Records`].
    pub async fn open(&self, name: &WorkspaceName) -> Result<Workspace, OpenError> {
        let slot = self.slot(name);
        let mut slot = slot.lock().await;
        if let Some(inner) = slot.upgrade().filter(|inner| inner.core.is_open()) {
            inner.core.ensure_held().await?;
            return Ok(Workspace::from_inner(inner));
        }
        // Checked first, so that an unknown name fails without waiting.
        if self.context.records.workspace(name).await?.is_none() {
            return Err(OpenError::NotFound(name.clone()));
        }
        let workspace = Workspace::start(self.take(name, self.context.settings.lease_timeout).await?);
        *slot = Arc::downgrade(workspace.inner());
        Ok(workspace)
    }

    /// Takes the lease, and reads the record under it.
    async fn take(&self, name: &WorkspaceName, wait: Duration) -> Result<WorkspaceCore, OpenError> {
        let held_lease = HeldLease::take(Arc::clone(&self.context), name, wait).await;
        let held_lease = held_lease.map_err(OpenError::from_lease)?;
        match self.read(name).await {
            Ok((record, details)) => Ok(WorkspaceCore::new(Arc::clone(&self.context), held_lease, record, details)),
            Err(error) => {
                held_lease.release().await;
                Err(error)
            }
        }
    }

    fn slot(&self, name: &WorkspaceName) -> Slot {
        let mut slots = self.slots.lock();
        // Drops slots that no task holds or waits for.
        let in_use =
            |slot: &Slot| Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|inner| inner.strong_count() > 0);
        slots.retain(|_, slot| in_use(slot));
        Arc::clone(slots.entry(name.clone()).or_default())
    }

    async fn read(&self, name: &WorkspaceName) -> Result<(WorkspaceRecord, Details), OpenError> {
        let record = self.context.records.workspace(name).await?;
        let record = record.ok_or_else(|| OpenError::NotFound(name.clone()))?;
        let details = read_details(&record)?;
        Ok((record, details))
    }

    /// All workspaces, by name. Sends no request and resumes nothing.
    ///
    /// # Errors
    /// [`OpenError::Records`] or [`OpenError::Damaged`].
    pub async fn list(&self) -> Result<Vec<WorkspaceView>, OpenError> {
        let records = self.context.records.workspaces().await?;
        records.iter().map(|record| Ok(WorkspaceView::new(record, &read_details(record)?))).collect()
    }

    /// One workspace. Sends no request and resumes nothing.
    ///
    /// # Errors
    /// [`OpenError::NotFound`], [`OpenError::Records`] or [`OpenError::Damaged`].
    pub async fn show(&self, name: &WorkspaceName) -> Result<WorkspaceView, OpenError> {
        let (record, details) = self.read(name).await?;
        Ok(WorkspaceView::new(&record, &details))
    }

    /// The checkpoints of a project, oldest first; also of one without a workspace.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails.
    pub async fn checkpoints_of(&self, project: &ProjectId) -> Result<Vec<ListedCheckpoint>, ObjectStoreError> {
        self.context.checkpoints.list(project).await
    }

    /// Removes a checkpoint of a project without a workspace. Returns false when it does not exist.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails; a retry continues.
    pub async fn delete_checkpoint_of(&self, project: &ProjectId, stamp: Stamp) -> Result<bool, ObjectStoreError> {
        let deleted = self.context.checkpoints.delete(project, stamp).await?;
        self.context.record_stored(project, self.context.settings.clock.now()).await;
        Ok(deleted)
    }

    /// Removes all checkpoints of a project permanently. No process may hold a workspace of it.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails; a retry continues.
    pub async fn remove_checkpoints_of(&self, project: &ProjectId) -> Result<(), ObjectStoreError> {
        self.context.checkpoints.remove_all(project).await?;
        self.context.record_stored(project, self.context.settings.clock.now()).await;
        Ok(())
    }
}
