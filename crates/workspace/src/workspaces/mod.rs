//! All workspaces that the records know: made, opened, listed; and the sandboxes that none of them knows of.

mod attend;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;
use sdk::model::ListedSandbox;
use sdk::{ListQuery, SandboxId};
use serde::Serialize;
use tracing::{info, warn};
use uuid::Uuid;

use crate::chain::chain;
use crate::clock::earlier;
use crate::devserver::DevServer;
use crate::house::{House, Parts};
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::provider::{ANSWER_TIME, CREATION, Limits, Orchestrator, Provider, Skipped};
use crate::records::{RecordsError, UsageQuery, WorkspaceRecord, WorkspaceState};
use crate::setup::Setup;
use crate::snapshot::{Listed, ProjectId, Restored, Snapshots, StoreError};
use crate::workspace::{
    Core, Details, Held, Holding, METADATA, OpenError, Place, SetUp, SetupError, Workspace, dev_server, read_details,
};

pub use attend::{Attendance, Attended};

/// A creation may take so long until its sandbox stands in a record.
const CREATION_TIME: Duration = Duration::from_secs(300);
/// How far a provider's clock may be from ours.
const SKEW: Duration = Duration::from_secs(24 * 3600);

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
        }
    }
}

impl From<&Place> for Abandoned {
    fn from(Place { provider, sandbox }: &Place) -> Self {
        Self { provider: provider.clone(), sandbox: sandbox.to_string() }
    }
}

/// A sandbox that was made for a workspace and that no record names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    pub provider: ProviderName,
    #[serde(rename = "sandboxID")]
    pub sandbox: String,
    pub workspace: String,
}

impl Workspaces {
    pub fn new(parts: Parts) -> Self {
        Self { house: Arc::new(parts.into()), slots: Arc::default() }
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
        let holding = Holding::take(Arc::clone(&self.house.records), name, &self.house.settings, wait).await;
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

    /// Sandboxes that were made for workspaces of these records and that none of them names: those of processes that died
    /// while they made one. Providers that do not answer are left out.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn orphans(&self) -> Result<Vec<Orphan>, OpenError> {
        let mut found = Vec::new();
        let now = self.house.settings.clock.now();
        for provider in self.house.asked_for(None).await {
            let rows = match provider.client().await {
                Ok(client) => client.within(ANSWER_TIME).list(ListQuery::new()).try_collect::<Vec<_>>().await,
                Err(error) => {
                    warn!(provider = %provider.name(), %error, "orphans were not looked for");
                    continue;
                }
            };
            match rows {
                Ok(rows) => {
                    let rows: Vec<_> = rows.into_iter().filter(|row| row.metadata.contains_key(METADATA)).collect();
                    let ours = self.house.ours(&rows, earlier(now, CREATION_TIME)).await?;
                    let rows = rows.into_iter().zip(ours).filter(|(_, ours)| *ours).map(|(row, _)| row);
                    found.extend(rows.map(|row| Orphan {
                        provider: provider.name().clone(),
                        workspace: row.metadata.get(METADATA).cloned().unwrap_or_default(),
                        sandbox: row.sandbox_id,
                    }));
                }
                Err(error) => warn!(provider = %provider.name(), %error, "orphans were not looked for"),
            }
        }
        // Read last: what a record names by now is no orphan.
        let named = self.named().await?;
        found.retain(|orphan| !named.contains(&(orphan.provider.clone(), orphan.sandbox.clone())));
        Ok(found)
    }

    /// Every sandbox that a record speaks of.
    async fn named(&self) -> Result<HashSet<(ProviderName, String)>, OpenError> {
        let mut named = HashSet::new();
        for record in self.house.records.workspaces().await? {
            let details = read_details(&record)?;
            let own = record.sandbox.clone().map(|sandbox| Place { provider: record.provider.clone(), sandbox });
            let moving = details.handover.into_iter().flat_map(|handover| [handover.old, handover.successor]).flatten();
            let places = own.into_iter().chain(moving).chain(details.retired).chain(details.left_behind);
            named.extend(places.map(|Place { provider, sandbox }| (provider, sandbox.to_string())));
        }
        Ok(named)
    }

    /// Ends all orphans, and says which.
    ///
    /// # Errors
    /// The records cannot be read. A sandbox that could not be ended is not among those returned.
    pub async fn sweep(&self) -> Result<Vec<Orphan>, OpenError> {
        let mut ended = Vec::new();
        for orphan in self.orphans().await? {
            let Ok(provider) = self.house.orchestrator.provider(&orphan.provider) else { continue };
            let (Ok(client), Ok(id)) = (provider.client().await, orphan.sandbox.parse::<SandboxId>()) else { continue };
            match client.within(ANSWER_TIME).kill(&id).await {
                Ok(_) => {
                    info!(provider = %orphan.provider, sandbox = %id, workspace = orphan.workspace, "ended an orphan");
                    let closed =
                        self.house.records.close_interval(&orphan.provider, &id, self.house.settings.clock.now());
                    if let Err(error) = closed.await {
                        warn!(error = %chain(&error), "the end of a run was not noted");
                    }
                    ended.push(orphan);
                }
                Err(error) => warn!(sandbox = %id, %error, "an orphan could not be ended"),
            }
        }
        Ok(ended)
    }
}

impl House {
    /// Providers that were ever asked for a sandbox, for a project or for any. Others have none, and the local one would be
    /// started by the question.
    pub(crate) async fn asked_for(&self, project: Option<&ProjectId>) -> Vec<&Provider> {
        let query = UsageQuery { project: project.map(ToString::to_string), ..UsageQuery::default() };
        let asked: HashSet<ProviderName> = match self.records.usage(&query).await {
            Ok(used) => used.creations.into_iter().map(|creation| creation.provider).collect(),
            Err(error) => {
                warn!(error = %chain(&error), "the books cannot be read");
                HashSet::new()
            }
        };
        let usable = |provider: &&Provider| provider.unusable().is_none() && asked.contains(provider.name());
        self.orchestrator.providers().iter().filter(usable).collect()
    }

    /// Which of these sandboxes were made by way of these records, before `before`. Others, of whoever has the same key, are
    /// nobody's business here.
    pub(crate) async fn ours(&self, rows: &[ListedSandbox], before: Timestamp) -> Result<Vec<bool>, RecordsError> {
        let started = rows.iter().filter_map(|row| row.started_at.parse::<Timestamp>().ok()).min();
        let Some(started) = started else { return Ok(vec![false; rows.len()]) };
        let query = UsageQuery { since: Some(earlier(started, SKEW)), ..UsageQuery::default() };
        let creations = self.records.usage(&query).await?.creations;
        let known: HashSet<Uuid> =
            creations.iter().filter(|creation| creation.at <= before).map(|creation| creation.id).collect();
        let ours = |row: &ListedSandbox| {
            row.metadata.get(CREATION).and_then(|id| id.parse().ok()).is_some_and(|id: Uuid| known.contains(&id))
        };
        Ok(rows.iter().map(ours).collect())
    }
}
