//! All workspaces that the records know: made, opened, listed; and the sandboxes that none of them knows of.

mod attend;
mod look;
mod orphans;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use database::Unwritable;
use jiff::Timestamp;
use sdk::SandboxId;
use serde::Serialize;

use crate::devserver::DevServer;
use crate::house::{House, Parts};
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::{Limits, Orchestrator, Skipped};
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::setup::Setup;
use crate::snapshot::{Listed, ProjectId, Restored, Snapshots, Stamp, StoreError};
use crate::workspace::{
    Core, Details, Held, Holding, OpenError, Place, SetUp, SetupError, Workspace, dev_server, read_details,
};

pub use attend::{Attendance, Attended};
pub use look::SandboxCondition;
#[cfg(test)]
pub(crate) use orphans::Named;
pub use orphans::{ORPHAN_GRACE, Orphan, Swept};

/// The workspaces of a program. Cheap to clone.
#[derive(Clone)]
pub struct Workspaces {
    house: Arc<House>,
    /// Those that this process has.
    slots: Arc<Mutex<BTreeMap<WorkspaceName, Slot>>>,
}

/// One workspace in this process. Locked by who opens it, so that others who want it get the same one.
type Slot = Arc<tokio::sync::Mutex<Weak<Held>>>;

/// A workspace that was made.
#[derive(Debug)]
pub struct Created {
    pub workspace: Workspace,
    pub project: ProjectId,
    pub provider: ProviderName,
    pub sandbox: Option<SandboxId>,
    /// Providers that come first and did not take it.
    pub skipped: Vec<Skipped>,
    pub limits: Limits,
    /// The project had snapshots: these files are there, and the steps of the set-up were left out.
    pub restored: Option<Restored>,
}

/// What the records say of a workspace. Nobody was asked, and nothing woken.
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
    /// Runs again in every new sandbox.
    pub dev_server: Option<DevServer>,
    pub created_at: Timestamp,
    /// The end of the workspace itself.
    pub expires_at: Timestamp,
    /// The end of its sandbox, as far as it is known; extended on use.
    pub sandbox_ends_at: Option<Timestamp>,
    /// Sandboxes that could not be reached when it went on elsewhere. They may have changes that are nowhere else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<Abandoned>,
    /// When its files were last saved, or seen to be in the newest snapshot.
    pub saved_at: Option<Timestamp>,
    /// Snapshots may contain values of its variables.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_env_values: bool,
}

/// A sandbox that a workspace was in, and that was not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Abandoned {
    pub provider: ProviderName,
    #[serde(rename = "sandboxID")]
    pub sandbox: String,
}

impl WorkspaceView {
    fn of(record: &WorkspaceRecord, details: &Details) -> Self {
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

impl From<&Place> for Abandoned {
    fn from(Place { provider, sandbox }: &Place) -> Self {
        Self { provider: provider.clone(), sandbox: sandbox.to_string() }
    }
}

impl Workspaces {
    pub fn new(parts: Parts) -> Self {
        Self { house: Arc::new(parts.into()), slots: Arc::default() }
    }

    /// Why the records refuse changes, while they do. Does no I/O.
    pub fn fault(&self) -> Option<Unwritable> {
        self.house.records.fault()
    }

    pub fn orchestrator(&self) -> &Orchestrator {
        &self.house.orchestrator
    }

    pub fn ledger(&self) -> &Ledger {
        &self.house.ledger
    }

    pub fn snapshots(&self) -> &Snapshots {
        &self.house.snapshots
    }

    /// Makes a workspace. After a failure, or when the process was killed, calling again goes on from the failed step.
    ///
    /// Where the project has snapshots already, from a workspace of the same name before this one, its newest files are
    /// there instead of what the set-up would have made, and so is its dev server unless the set-up declares one.
    ///
    /// # Errors
    /// [`SetupError`] names the step that failed.
    pub async fn create(&self, name: &WorkspaceName, setup: Setup) -> Result<Created, SetupError> {
        let slot = self.slot(name);
        let mut slot = slot.lock().await;
        let core = Core::begin(Arc::clone(&self.house), name, &setup).await?;
        match core.set_up(&setup).await {
            Ok(SetUp { skipped, limits, restored }) => {
                let workspace = Workspace::start(core);
                *slot = Arc::downgrade(workspace.held());
                let (project, provider) = (workspace.project().clone(), workspace.provider());
                let sandbox = workspace.sandbox_id();
                Ok(Created { workspace, project, provider, sandbox, skipped, limits, restored })
            }
            Err(error) => {
                core.forget_unless_begun().await;
                core.give_back().await;
                Err(error)
            }
        }
    }

    /// Takes a workspace: nobody else can act on it until it is closed. No sandbox is asked for or woken.
    ///
    /// # Errors
    /// [`OpenError::Held`] when another process has it and does not give it back in time.
    pub async fn open(&self, name: &WorkspaceName) -> Result<Workspace, OpenError> {
        let slot = self.slot(name);
        let mut slot = slot.lock().await;
        if let Some(held) = slot.upgrade().filter(|held| held.core.is_open()) {
            held.core.ensure_held().await?;
            return Ok(Workspace::from_held(held));
        }
        // Asked first, so that a name that nobody knows is told at once.
        if self.house.records.workspace(name).await?.is_none() {
            return Err(OpenError::NotFound(name.clone()));
        }
        let workspace = Workspace::start(self.take(name, self.house.settings.lease_wait).await?);
        *slot = Arc::downgrade(workspace.held());
        Ok(workspace)
    }

    /// Takes the lease, and reads what is known under it.
    async fn take(&self, name: &WorkspaceName, wait: Duration) -> Result<Core, OpenError> {
        let holding = Holding::take(Arc::clone(&self.house), name, wait).await;
        let holding = holding.map_err(OpenError::of_lease)?;
        match self.read(name).await {
            Ok((record, details)) => Ok(Core::new(Arc::clone(&self.house), holding, record, details)),
            Err(error) => {
                holding.release().await;
                Err(error)
            }
        }
    }

    fn slot(&self, name: &WorkspaceName) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // Forget those that nobody has or waits for.
        let in_use =
            |slot: &Slot| Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|held| held.strong_count() > 0);
        slots.retain(|_, slot| in_use(slot));
        Arc::clone(slots.entry(name.clone()).or_default())
    }

    async fn read(&self, name: &WorkspaceName) -> Result<(WorkspaceRecord, Details), OpenError> {
        let record = self.house.records.workspace(name).await?;
        let record = record.ok_or_else(|| OpenError::NotFound(name.clone()))?;
        let details = read_details(&record)?;
        Ok((record, details))
    }

    /// All of them, by name. Nobody is asked, and nothing woken.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn list(&self) -> Result<Vec<WorkspaceView>, OpenError> {
        let records = self.house.records.workspaces().await?;
        records.iter().map(|record| Ok(WorkspaceView::of(record, &read_details(record)?))).collect()
    }

    /// One of them. Nobody is asked, and nothing woken.
    ///
    /// # Errors
    /// There is none of that name, or the records cannot be read.
    pub async fn show(&self, name: &WorkspaceName) -> Result<WorkspaceView, OpenError> {
        let (record, details) = self.read(name).await?;
        Ok(WorkspaceView::of(&record, &details))
    }

    /// The snapshots of a project, oldest first; also of one that has no workspace any more.
    ///
    /// # Errors
    /// When the store is in trouble.
    pub async fn snapshots_of(&self, project: &ProjectId) -> Result<Vec<Listed>, StoreError> {
        self.house.snapshots.list(project).await
    }

    /// Removes a snapshot of a project that has no workspace any more. False when there is none of that name.
    ///
    /// # Errors
    /// When the store is in trouble; calling again goes on.
    pub async fn delete_snapshot_of(&self, project: &ProjectId, stamp: Stamp) -> Result<bool, StoreError> {
        let deleted = self.house.snapshots.delete(project, stamp).await?;
        self.house.note_stored(project, self.house.settings.clock.now()).await;
        Ok(deleted)
    }

    /// Removes the snapshots of a project for good. Nobody may have a workspace of it.
    ///
    /// # Errors
    /// When the store is in trouble; calling again goes on.
    pub async fn remove_snapshots_of(&self, project: &ProjectId) -> Result<(), StoreError> {
        self.house.snapshots.remove_all(project).await?;
        self.house.note_stored(project, self.house.settings.clock.now()).await;
        Ok(())
    }
}
