//! What all workspaces of a program share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use sdk::SandboxId;
use tracing::warn;

use crate::chain::chain;
use crate::clock::later;
use crate::events::Observer;
use crate::ledger::Ledger;
use crate::name::{ProviderName, WorkspaceName};
use crate::process::{self, Liveness};
use crate::provider::Orchestrator;
use crate::records::{Records, Stored};
use crate::settings::Settings;
use crate::snapshot::{ProjectId, Snapshots};

/// What [`crate::Workspaces`] are built from.
pub struct Parts {
    pub orchestrator: Orchestrator,
    pub records: Arc<dyn Records>,
    pub snapshots: Snapshots,
    pub ledger: Ledger,
    pub observer: Arc<dyn Observer>,
    pub settings: Settings,
}

pub(crate) struct House {
    pub(crate) orchestrator: Orchestrator,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) snapshots: Snapshots,
    pub(crate) ledger: Ledger,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) settings: Settings,
    /// Providers that did not answer when orphans were looked for.
    pub(crate) silent: Mutex<HashSet<ProviderName>>,
    /// Workspaces whose rows cannot be read, as logged when a sweep did not run for them.
    pub(crate) unreadable: Mutex<Vec<String>>,
    /// Orphans that this process watches.
    pub(crate) watched: Mutex<HashMap<SandboxId, Watched>>,
    /// Leases of other processes that end later than a new one would.
    pub(crate) seen_leases: Mutex<HashMap<WorkspaceName, SeenLease>>,
    /// By the wall clock and by the steady one.
    began: (Timestamp, Duration),
    /// How leases name this process.
    pub(crate) owner: String,
    /// What is known of the processes that leases name.
    pub(crate) liveness: Box<dyn Fn(&str) -> Liveness + Send + Sync>,
}

/// A lease that ends later than a new one would.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenLease {
    pub(crate) fence: i64,
    pub(crate) until: Timestamp,
    /// Since when it has not changed, by the steady clock.
    pub(crate) since: Duration,
}

/// For how long this process has watched an orphan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watched {
    /// What was recorded when it began.
    pub(crate) before: Duration,
    /// When it began, by the steady clock.
    pub(crate) since: Duration,
    /// This process has logged that the orphan could not be paused.
    pub(crate) pause_failed: bool,
}

impl From<Parts> for House {
    fn from(Parts { orchestrator, records, snapshots, ledger, observer, settings }: Parts) -> Self {
        let began = (settings.clock.now(), settings.clock.steady());
        Self {
            orchestrator,
            records,
            snapshots,
            ledger,
            observer,
            settings,
            silent: Mutex::default(),
            unreadable: Mutex::default(),
            watched: Mutex::default(),
            seen_leases: Mutex::default(),
            began,
            owner: process::this(),
            liveness: Box::new(process::liveness),
        }
    }
}

impl House {
    /// The wall clock as it was when this process began, with the time that has passed since by the
    /// steady clock: it does not jump when the clock is set. Only for this process: what others
    /// read carries the wall clock's time.
    pub(crate) fn stable_now(&self) -> Timestamp {
        let (wall, steady) = self.began;
        later(wall, self.settings.clock.steady().saturating_sub(steady))
    }

    /// Notes how much the store keeps for a project. A book that cannot be written now is right again after the next save.
    pub(crate) async fn note_stored(&self, project: &ProjectId, at: Timestamp) {
        let bytes = match self.snapshots.stored_bytes(project).await {
            Ok(bytes) => bytes,
            Err(error) => return warn!(%project, error = %chain(&error), "what is stored was not noted"),
        };
        let stored = Stored { project: project.to_string(), at, bytes };
        if let Err(error) = self.records.note_stored(&stored).await {
            warn!(%project, error = %chain(&error), "what is stored was not noted");
        }
    }
}
