//! State that all owners of sandboxes share: the ports, and the registry of sandboxes.
//!
//! Invariant: a sandbox is in the registry from before its machine boots until after its machine
//! has ended.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use egress::Decision;
use engine::{Engine, FilesId, Machine};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard, RwLock};
use protocol::SandboxId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::build::Builds;
use crate::clock::Clock;
use crate::config::SandboxesConfig;
use crate::description::{Description, write_description};
use crate::egress_log::EgressLog;
use crate::error::SandboxError;
use crate::faults::Faults;
use crate::lifecycle::State;
use crate::log::Log;
use crate::metrics::Readings;
use crate::owner::{Command, Reply};
use crate::ports::Records;
use crate::sandbox::Record;
use crate::secret::Secrets;
use crate::spares::{self, Spares};
use crate::template::TemplateRecord;
use crate::template::catalog::Catalog;
use crate::volume::Volumes;

pub(crate) struct NodeState {
    pub engine: Arc<dyn Engine>,
    pub records: Arc<dyn Records>,
    pub clock: Arc<dyn Clock>,
    pub config: SandboxesConfig,
    pub templates: Catalog,
    pub builds: Builds,
    pub volumes: Volumes,
    pub secrets: Arc<Secrets>,
    pub spares: Spares,
    pub faults: Faults,
    /// Cancelled when the server stops: owners leave their sandboxes to their leases.
    pub stop: CancellationToken,
    registry: RwLock<HashMap<SandboxId, Handle>>,
}

/// The handle of a sandbox's owner: its command channel, and the state it publishes.
#[derive(Clone)]
pub(crate) struct Handle {
    pub commands: mpsc::Sender<Command>,
    pub view: watch::Receiver<View>,
    pub notes: Arc<SandboxNotes>,
}

/// The published state of a sandbox.
#[derive(Clone)]
pub(crate) struct View {
    pub record: Arc<Record>,
    pub state: State,
    /// Present while the sandbox can be reached.
    pub live: Option<Arc<RunningSandbox>>,
    /// Present while the sandbox is paused with its memory.
    pub frozen: Option<Arc<dyn Machine>>,
}

/// A sandbox that can be reached, from one start or resume to the next pause or end.
pub struct RunningSandbox {
    pub machine: Arc<dyn Machine>,
    /// Cancelled when the sandbox can no longer be reached: open connections to it must close.
    pub disconnect: CancellationToken,
}

/// Metrics and logs of a sandbox, in memory.
#[derive(Default)]
pub(crate) struct SandboxNotes {
    readings: Mutex<Readings>,
    log: Mutex<Log>,
    egress: Mutex<EgressLog>,
}

impl SandboxNotes {
    pub(crate) fn readings(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock()
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    /// Logs an egress decision, or counts it.
    pub(crate) fn record_decision(&self, now: Timestamp, decision: Decision) {
        let entries = self.egress.lock().take(now, decision);
        self.log().write_all(entries);
    }

    /// Logs the counted decisions when the window has ended.
    pub(crate) fn flush_decisions(&self, now: Timestamp) {
        let entries = self.egress.lock().flush(now);
        self.log().write_all(entries);
    }
}

impl NodeState {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        config: SandboxesConfig,
        uploads: &Path,
    ) -> Self {
        let templates = Catalog::new(Arc::clone(&records));
        let builds = Builds::new(Arc::clone(&records), uploads);
        let volumes = Volumes::new(Arc::clone(&records));
        let secrets = Arc::new(Secrets::new(Arc::clone(&records)));
        let spares = Spares::new(config.spares);
        Self {
            engine,
            records,
            clock,
            config,
            templates,
            builds,
            volumes,
            secrets,
            spares,
            faults: Faults::new(uploads.parent().unwrap_or(uploads)),
            stop: CancellationToken::new(),
            registry: RwLock::default(),
        }
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Option<Handle> {
        self.registry.read().get(id).cloned()
    }

    /// Sends a command to the owner of a sandbox and waits for its reply.
    pub(crate) async fn ask<T>(
        &self,
        id: &SandboxId,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, SandboxError> {
        let gone = || SandboxError::NotFound(id.clone());
        let handle = self.find(id).ok_or_else(gone)?;
        let (reply, answer) = oneshot::channel();
        handle.commands.send(command(reply)).await.map_err(|_| gone())?;
        // The owner drops waiting commands when the sandbox has ended. One that was queued after
        // that is dropped with the last sender, so this call must not hold one while it waits.
        drop(handle);
        answer.await.map_err(|_| gone())?
    }

    pub(crate) fn view(&self, id: &SandboxId) -> Option<View> {
        let registry = self.registry.read();
        registry.get(id).map(|handle| handle.view.borrow().clone())
    }

    pub(crate) fn views(&self) -> Vec<View> {
        let registry = self.registry.read();
        registry.values().map(|handle| handle.view.borrow().clone()).collect()
    }

    pub(crate) fn register(&self, id: SandboxId, handle: Handle) {
        self.registry.write().insert(id, handle);
    }

    /// Registers a sandbox that is about to take memory, unless the machine is full.
    pub(crate) fn register_within_limit(&self, id: SandboxId, handle: Handle) -> Result<(), SandboxError> {
        let mut registry = self.registry.write();
        check_capacity(registry.values(), self.config.max_sandboxes)?;
        registry.insert(id, handle);
        Ok(())
    }

    /// Checks whether one more sandbox may take memory.
    pub(crate) fn check_capacity(&self) -> Result<(), SandboxError> {
        let registry = self.registry.read();
        check_capacity(registry.values(), self.config.max_sandboxes)
    }

    /// Writes a description beside files, in case the record that names them is lost. Nothing else
    /// depends on it.
    pub(crate) async fn describe(&self, files: &FilesId, description: &Description) {
        if let Err(error) = write_description(&*self.engine, files, description).await {
            warn!(%files, %error, "files are without a description");
        }
    }

    /// Describes the files of every build of a template.
    pub(crate) async fn describe_template(&self, template: &TemplateRecord) {
        for (files, description) in Description::for_builds(template) {
            self.describe(&files, &description).await;
        }
    }

    /// Removes files that no record names. Those that stay are swept at the next start.
    pub(crate) async fn remove_unused(&self, files: &[FilesId]) {
        for files in files {
            spares::remove(self, self.spares.take_all(files)).await;
            if let Err(error) = self.engine.remove_files(files).await {
                warn!(%files, %error, "unused files are left until the next start");
            }
        }
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        self.registry.write().remove(id);
    }
}

fn check_capacity<'a>(handles: impl Iterator<Item = &'a Handle>, limit: usize) -> Result<(), SandboxError> {
    let taken = handles.filter(|handle| handle.view.borrow().state.holds_memory()).count();
    if taken < limit { Ok(()) } else { Err(SandboxError::Full { limit }) }
}
