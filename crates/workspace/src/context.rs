//! State that all workspaces of a program share.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use sdk::SandboxId;
use tracing::warn;

use crate::checkpoints::CheckpointStore;
use crate::clock::later;
use crate::events::Observer;
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::process::{self, Liveness};
use crate::provider::Orchestrator;
use crate::records::{Records, Stored};
use crate::settings::Settings;
use crate::workspace::{SandboxUpkeep, UpkeepCommands};
use checkpoint::{Checkpoints, ProjectId};
use text::error_chain;

/// The dependencies of [`crate::Workspaces`].
pub struct Parts {
    pub orchestrator: Orchestrator,
    pub records: Arc<dyn Records>,
    pub checkpoints: Checkpoints,
    pub ledger: Ledger,
    pub observer: Arc<dyn Observer>,
    pub settings: Settings,
}

pub(crate) struct WorkspaceContext {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) records: Arc<dyn Records>,
    /// For lists, browsing and metadata.
    pub(crate) checkpoints: Checkpoints,
    /// The same checkpoints, for the life of a workspace.
    pub(crate) store: Arc<dyn CheckpointStore>,
    pub(crate) upkeep: Arc<dyn SandboxUpkeep>,
    pub(crate) ledger: Ledger,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) settings: Settings,
    /// Providers that did not answer during the last sweep for orphans.
    pub(crate) silent: Mutex<HashSet<ProviderName>>,
    /// Workspaces with unreadable rows, as logged when a sweep skipped them.
    pub(crate) unreadable: Mutex<Vec<String>>,
    /// Orphans that this process observes.
    pub(crate) watched: Mutex<HashMap<SandboxId, WatchedOrphan>>,
    /// Leases of other processes that end later than a new lease would.
    pub(crate) seen_leases: Mutex<HashMap<WorkspaceName, SeenLease>>,
    /// The start of this process, by the wall clock and by the monotonic clock.
    began: (Timestamp, Duration),
    /// The owner name of this process in leases.
    pub(crate) owner: String,
    /// Whether the process that owns a lease is alive.
    pub(crate) liveness: Box<dyn Fn(&str) -> Liveness + Send + Sync>,
}

/// A lease that ends later than a new one would.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenLease {
    pub(crate) fence: i64,
    pub(crate) until: Timestamp,
    /// Unchanged since then, by the monotonic clock.
    pub(crate) since: Duration,
}

/// How long this process has observed an orphan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedOrphan {
    /// The observed time that was recorded when this observation started.
    pub(crate) before: Duration,
    /// The start of this observation, by the monotonic clock.
    pub(crate) since: Duration,
    /// Whether this process already logged that the orphan could not be paused.
    pub(crate) pause_failed: bool,
}

impl From<Parts> for WorkspaceContext {
    fn from(Parts { mut orchestrator, records, checkpoints, ledger, observer, settings }: Parts) -> Self {
        orchestrator.clock = settings.clock.clone();
        let began = (settings.clock.now(), settings.clock.monotonic());
        Self {
            orchestrator,
            records,
            store: Arc::new(checkpoints.clone()),
            upkeep: Arc::new(UpkeepCommands),
            checkpoints,
            ledger,
            observer,
            settings,
            silent: Mutex::default(),
            unreadable: Mutex::default(),
            watched: Mutex::default(),
            seen_leases: Mutex::default(),
            began,
            owner: process::identify(),
            liveness: Box::new(process::liveness),
        }
    }
}

impl WorkspaceContext {
    /// The wall clock at the start of this process plus the monotonic time since, so that it does
    /// not jump when the clock is set. Only for comparisons within this process: records carry the
    /// wall clock.
    pub(crate) fn stable_now(&self) -> Timestamp {
        let (wall, monotonic) = self.began;
        later(wall, self.settings.clock.monotonic().saturating_sub(monotonic))
    }

    /// Records how much the store holds for a project. A failed write is corrected by the next
    /// save.
    pub(crate) async fn record_stored(&self, project: &ProjectId, at: Timestamp) {
        let bytes = match self.checkpoints.stored_bytes(project).await {
            Ok(bytes) => bytes,
            Err(error) => return warn!(%project, error = %error_chain(&error), "stored bytes could not be recorded"),
        };
        let stored = Stored { project: project.to_string(), at, bytes };
        if let Err(error) = self.records.record_stored(&stored).await {
            warn!(%project, error = %error_chain(&error), "stored bytes could not be recorded");
        }
    }
}
