//! The node: routes calls to the owners of sandboxes and reads the views that owners publish.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, EngineCapabilities, EngineError, FilesId, Machine};
use futures::StreamExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use protocol::SandboxId;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use uuid::Uuid;

use crate::clock::{Clock, SystemClock};
use crate::config::SandboxesConfig;
use crate::egress::Egress;
use crate::error::{OpenError, SandboxError};
use crate::id::is_of_build;
use crate::identity;
use crate::lifecycle::{PauseMode, State};
use crate::log::Entry;
use crate::metrics::Sample;
use crate::owner::{Command, OnRunning, Owner, Reply, Resume, Resumed};
use crate::ports::{Records, TemplateRecords, VolumeRecords};
use crate::records::SqliteRecords;
use crate::sandbox::{OnTimeout, PersistedState, Record};
use crate::spares;
use crate::state::{Handle, NodeState, RunningSandbox, View};

/// Shortest timeout of an automatic resume: the client that sent the request cannot ask for more.
const MIN_RESUME_TIMEOUT: Duration = Duration::from_secs(300);
/// Machines that are adopted concurrently at the start of the server.
const CONCURRENT_ADOPTIONS: usize = 16;
/// Sandboxes that are killed concurrently when all are.
const CONCURRENT_KILLS: usize = 16;
/// Longest wait for the owners when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Shorter than `sandbar down` waits for the server: it ends what the server could not.
const END_TIMEOUT: Duration = Duration::from_secs(90);
/// A stop that waits longer for the end of a sandbox logs which are left.
const SLOW_END: Duration = Duration::from_secs(15);

/// The records' file in the data directory.
const DATABASE: &str = "node.sqlite";

/// What happens to the sandboxes when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// They continue under their leases, and the next server adopts them.
    Keep,
    /// All are killed, paused ones too, and their files are removed.
    End,
}

/// What to do if part of a data directory that was used before is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnMissing {
    /// Change nothing and return an error that names what is missing.
    Refuse,
    /// Continue with what exists.
    Accept,
}

/// A sandbox as callers see it.
#[derive(Clone)]
pub struct Seen {
    pub record: Arc<Record>,
    /// A sandbox that is being paused counts as paused.
    pub standing: PersistedState,
}

/// Whether and how a sandbox can be reached.
pub enum Reachability {
    Open(Arc<RunningSandbox>),
    /// Paused, and traffic resumes it: see [`Node::auto_resume`]. Contains the frozen machine,
    /// unless the sandbox is changing: a caller can check whether a port is open without a resume.
    Resumable(Option<Arc<dyn Machine>>),
    /// Being paused or resumed.
    Changing,
    Closed,
}

/// One machine's sandboxes. [`Node::close`] stops it; dropping it leaves its tasks to the runtime.
pub struct Node {
    id: Uuid,
    pub(crate) node_state: Arc<NodeState>,
    /// All tasks that the node has spawned.
    pub(crate) tasks: TaskTracker,
    /// Idempotency keys of create calls in progress.
    pub(crate) keys_in_progress: Arc<Mutex<HashSet<String>>>,
}

impl Node {
    /// Opens the sandboxes recorded in the directory `data`: adopts those whose machine is alive,
    /// cleans up after the others.
    ///
    /// # Errors
    /// [`OpenError::DatabaseMissing`] if there are files and no database, unless `on_missing`
    /// accepts that.
    pub async fn open(
        data: &Path,
        engine: Arc<dyn Engine>,
        config: SandboxesConfig,
        on_missing: OnMissing,
    ) -> Result<Arc<Self>, OpenError> {
        let database = data.join(DATABASE);
        // Checked before opening, which would create the database: the next start would take the
        // empty one for complete.
        if on_missing == OnMissing::Refuse && is_absent(&database)? {
            let files = engine.files().await?.len();
            if files > 0 {
                return Err(OpenError::DatabaseMissing { database, files });
            }
        }
        let records = SqliteRecords::open(&database).await?;
        let id = identity::read_or_create(data)
            .map_err(|source| OpenError::Unreadable { path: data.join(identity::FILE), source })?;
        let uploads = data.join("uploads");
        Self::open_state(engine, Arc::new(records), Arc::new(SystemClock), config, &uploads, id).await
    }

    /// Like [`Node::open`], with every port given by the caller and a new id. Archives for builds
    /// are kept in `uploads`.
    pub async fn open_with(
        engine: Arc<dyn Engine>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        config: SandboxesConfig,
        uploads: &Path,
    ) -> Result<Arc<Self>, OpenError> {
        Self::open_state(engine, records, clock, config, uploads, Uuid::new_v4()).await
    }

    async fn open_state(
        engine: Arc<dyn Engine>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        config: SandboxesConfig,
        uploads: &Path,
        id: Uuid,
    ) -> Result<Arc<Self>, OpenError> {
        let node_state = Arc::new(NodeState::new(engine, records, clock, config, uploads));
        let node = Self { id, node_state, tasks: TaskTracker::new(), keys_in_progress: Arc::default() };
        node.take_over().await?;
        Ok(Arc::new(node))
    }

    /// Identifies the server among all, whatever address it is reached at.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Counts the files that the records in the directory `data` name, without opening an engine.
    pub async fn count_recorded_files(data: &Path) -> Result<usize, OpenError> {
        let database = data.join(DATABASE);
        if is_absent(&database)? {
            return Ok(0);
        }
        let records = SqliteRecords::open(&database).await?;
        let templates = records.templates().await?;
        let kept: usize = templates.iter().map(|template| template.files().count()).sum();
        Ok(records.all().await?.len() + kept + records.volumes().await?.len())
    }

    pub fn config(&self) -> &SandboxesConfig {
        &self.node_state.config
    }

    pub fn now(&self) -> Timestamp {
        self.node_state.clock.now()
    }

    /// Reconciles records and machines. Afterwards nothing runs that no record names, and files
    /// that no record names are in the trash.
    async fn take_over(&self) -> Result<(), OpenError> {
        let (engine, records, now) = (&self.node_state.engine, &self.node_state.records, self.node_state.clock.now());
        let (mut kept, mut ended_leases) = (Vec::new(), HashSet::new());
        for record in records.all().await? {
            let ended = record.standing == PersistedState::Running && record.end_at <= now;
            if ended && record.spec.on_timeout == OnTimeout::Kill {
                records.remove(&record.id).await?;
                // The files go to the trash, so that a wrong clock at the start loses none of them.
                info!(sandbox = %record.id, "the lease ended while no server ran, sandbox killed; its files are in the trash");
                ended_leases.insert(FilesId::from(&record.id));
            } else {
                kept.push(record);
            }
        }
        self.node_state.templates.load().await?;
        self.node_state.templates.give_up_builds(now).await?;
        let mut files: HashSet<FilesId> = kept.iter().map(|record| FilesId::from(&record.id)).collect();
        // Before files are listed: a power cut may have moved those of a sandbox back to the
        // spares.
        engine.settle_spares(&files).await?;
        let present = engine.files().await?;
        self.node_state.builds.layers.load(&present).await?;
        let templates = self.node_state.templates.all();
        files.extend(templates.iter().flat_map(|template| template.files().cloned()));
        files.extend(self.node_state.builds.layers.files());
        self.node_state.secrets.load().await?;
        self.node_state.volumes.load().await?;
        files.extend(self.node_state.volumes.all().iter().map(|volume| volume.files.clone()));
        // The files that rows of a newer version name are kept.
        let unreadable = records.unreadable().await?;
        files.extend(unreadable.iter().flat_map(|row| row.files.iter().cloned()));
        let is_known =
            |id: &str| templates.iter().any(|template| template.id == id) || unreadable.iter().any(|row| row.id == id);
        self.node_state.builds.uploads.sweep(is_known).await.map_err(OpenError::Uploads)?;
        let machines = kept.iter().filter(|record| record.instance.is_some());
        let mut running: HashSet<SandboxId> = machines.map(|record| record.id.clone()).collect();
        running.extend(unreadable.iter().filter_map(|row| row.id.parse().ok()));
        let expected = running.len();
        let removed = engine.sweep(&running, &files).await?;
        self.report_swept(&removed, &ended_leases).await;
        for missing in files.difference(&present) {
            warn!(files = %missing, "a record names files that are missing from the pool");
        }
        let owners: Vec<(Owner, Handle)> = kept.into_iter().map(|record| self.new_owner(record)).collect();
        let mut found = self.adopt_all(&owners, &mut running).await;
        if running.len() < expected {
            // Machines that could not be adopted must not continue without an owner.
            engine.sweep(&running, &files).await?;
        }
        for (mut owner, handle) in owners {
            let id = owner.record().id.clone();
            let machine = found.remove(&id);
            self.node_state.register(id, handle);
            owner.restore(machine).await;
            self.tasks.spawn(owner.run());
        }
        self.tasks.spawn(Self::maintain_pool(Arc::clone(&self.node_state)));
        Ok(())
    }

    /// Logs what a sweep removed beyond the sandboxes whose lease ended, and deletes the files of
    /// interrupted builds, which are useless without the build.
    async fn report_swept(&self, swept: &[FilesId], ended_leases: &HashSet<FilesId>) {
        let unexpected = swept.iter().filter(|files| !ended_leases.contains(*files));
        let (scratch, kept): (Vec<_>, Vec<_>) = unexpected.partition(|files| is_of_build(files));
        for files in &scratch {
            if let Err(error) = self.node_state.engine.delete_from_trash(files).await {
                warn!(%files, %error, "files of a broken-off build stay in the trash");
            }
        }
        if !kept.is_empty() {
            let names = kept.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            warn!(
                count = kept.len(),
                names, "files that no record names are in the trash; `sandbar recover` lists them and brings them back"
            );
        }
    }

    /// Creates the owner of a sandbox that an earlier server left.
    fn new_owner(&self, record: Record) -> (Owner, Handle) {
        let state = match record.standing {
            PersistedState::Running => State::Running,
            PersistedState::Paused(kept) => State::Paused(kept),
        };
        Owner::new(&self.node_state, record, state)
    }

    /// Adopts the machines of `owners`; removes those that are not found from `running`.
    async fn adopt_all(
        &self,
        owners: &[(Owner, Handle)],
        running: &mut HashSet<SandboxId>,
    ) -> HashMap<SandboxId, Arc<dyn Machine>> {
        let wanted = owners.iter().filter_map(|(owner, _)| {
            let record = owner.record();
            Some((record.id.clone(), record.instance?, owner.egress_policy()))
        });
        let mut adoptions = futures::stream::iter(wanted)
            .map(|(id, instance, egress)| async move {
                let adopted = self.node_state.engine.adopt(&id, instance, egress).await;
                (id, adopted)
            })
            .buffer_unordered(CONCURRENT_ADOPTIONS);
        let mut found = HashMap::new();
        while let Some((id, adopted)) = adoptions.next().await {
            match adopted {
                Ok(Some(machine)) => {
                    found.insert(id, machine);
                    continue;
                }
                Ok(None) => {}
                Err(error) => warn!(sandbox = %id, %error, "the sandbox could not be adopted"),
            }
            running.remove(&id);
        }
        found
    }

    /// What the engine of its sandboxes can do.
    pub fn capabilities(&self) -> EngineCapabilities {
        self.node_state.engine.capabilities()
    }

    /// The sandbox `id`, if it is visible.
    pub fn get(&self, id: &SandboxId) -> Option<Seen> {
        self.node_state.view(id).and_then(to_seen)
    }

    /// All visible sandboxes, in no order.
    pub fn all(&self) -> Vec<Seen> {
        self.node_state.views().into_iter().filter_map(to_seen).collect()
    }

    /// How `id` can be reached now. Does not resume it.
    pub fn reachability(&self, id: &SandboxId) -> Option<(Arc<Record>, Reachability)> {
        let View { record, state, live, frozen } = self.node_state.view(id)?;
        let reachability = match (state, live) {
            (State::Running, Some(live)) => Reachability::Open(live),
            (State::Paused(PauseMode::Full) | State::Pausing(PauseMode::Full) | State::Resuming(_), _)
                if record.spec.auto_resume =>
            {
                Reachability::Resumable(frozen)
            }
            (State::Pausing(_) | State::Resuming(_), _) => Reachability::Changing,
            _ => Reachability::Closed,
        };
        Some((record, reachability))
    }

    /// Like [`Node::reachability`]; while the sandbox is being paused or resumed, waits for the
    /// result, at most `timeout`.
    pub async fn settled_reachability(&self, id: &SandboxId, timeout: Duration) -> Option<(Arc<Record>, Reachability)> {
        let (record, reachability) = self.reachability(id)?;
        if !matches!(reachability, Reachability::Changing) {
            return Some((record, reachability));
        }
        let mut view = self.node_state.find(id)?.view;
        let settled = view.wait_for(|view| !matches!(view.state, State::Pausing(_) | State::Resuming(_)));
        // Whether the sandbox settled, ended or is still changing, its current reachability is the
        // answer.
        let _ = tokio::time::timeout(timeout, settled).await;
        self.reachability(id)
    }

    /// Resumes a paused sandbox because a client sends it traffic.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`] also if the sandbox was paused again before this returns,
    /// otherwise those of [`Node::connect`].
    pub async fn auto_resume(&self, id: &SandboxId) -> Result<(Arc<RunningSandbox>, Resumed), SandboxError> {
        let lease = self.node_state.view(id).map_or(MIN_RESUME_TIMEOUT, |view| view.record.lease);
        let resume = Resume {
            timeout: lease.max(MIN_RESUME_TIMEOUT),
            kept: PauseMode::Full,
            on_running: OnRunning::Leave,
            on_timeout: None,
        };
        let resumed = self.ask(id, |reply| Command::Resume { resume, reply }).await?;
        let live = self.node_state.view(id).and_then(|view| view.live);
        live.map(|live| (live, resumed)).ok_or_else(|| SandboxError::NotFound(id.clone()))
    }

    /// Kills the sandbox, running or paused, and removes its files.
    pub async fn kill(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.ask(id, Command::Kill).await
    }

    pub async fn pause(
        &self,
        id: &SandboxId,
        kept: PauseMode,
        require_healthy_guest: bool,
    ) -> Result<(), SandboxError> {
        self.ask(id, |reply| Command::Pause { kept, require_healthy_guest, reply }).await
    }

    /// Ensures that the sandbox runs for at least `timeout`. `kept` chooses what a resume restores.
    pub async fn connect(&self, id: &SandboxId, timeout: Duration, kept: PauseMode) -> Result<Resumed, SandboxError> {
        let resume = Resume { timeout, kept, on_running: OnRunning::Extend, on_timeout: None };
        self.ask(id, |reply| Command::Resume { resume, reply }).await
    }

    /// Resumes a paused sandbox; fails with [`SandboxError::AlreadyRunning`] if it runs.
    pub async fn resume(
        &self,
        id: &SandboxId,
        timeout: Duration,
        kept: PauseMode,
        on_timeout: Option<OnTimeout>,
    ) -> Result<(), SandboxError> {
        let resume = Resume { timeout, kept, on_running: OnRunning::Refuse, on_timeout };
        self.ask(id, |reply| Command::Resume { resume, reply }).await.map(|_| ())
    }

    /// Sets the end of the lease to `timeout` from now, whether that is earlier or later than
    /// before.
    pub async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), SandboxError> {
        self.ask(id, |reply| Command::SetTimeout { timeout, reply }).await
    }

    /// Extends the lease to `duration` from now, unless it ends later anyway.
    pub async fn refresh(&self, id: &SandboxId, duration: Duration) -> Result<(), SandboxError> {
        self.ask(id, |reply| Command::Refresh { duration, reply }).await
    }

    /// Replaces the egress rules of the sandbox, running or paused. Connections that are no longer
    /// allowed are closed.
    pub async fn set_egress(
        &self,
        id: &SandboxId,
        egress: Egress,
        allow_internet: Option<bool>,
    ) -> Result<(), SandboxError> {
        let egress = Box::new(egress);
        self.ask(id, |reply| Command::SetEgress { egress, allow_internet, reply }).await
    }

    /// Samples of the sandbox within both bounds, oldest first.
    pub fn metrics(
        &self,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
    ) -> Result<Vec<Sample>, SandboxError> {
        let handle = self.node_state.find(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        Ok(handle.notes.readings().between(start, end))
    }

    pub fn latest_metric(&self, id: &SandboxId) -> Option<Sample> {
        self.node_state.find(id)?.notes.readings().latest()
    }

    /// The log of the sandbox, oldest entry first.
    pub async fn log(&self, id: &SandboxId) -> Result<Vec<Entry>, SandboxError> {
        let handle = self.node_state.find(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        self.ask(id, Command::ReadLog).await?;
        let entries = handle.notes.log().entries();
        Ok(entries)
    }

    async fn ask<T>(&self, id: &SandboxId, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, SandboxError> {
        self.node_state.ask(id, command).await
    }

    /// Runs `work` to its end even if the caller stops waiting, since an interruption would leave
    /// incomplete state behind.
    pub(crate) async fn complete<T, E>(&self, work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<SandboxError> + Send + 'static,
    {
        if self.tasks.is_closed() {
            return Err(SandboxError::Stopping.into());
        }
        self.tasks.spawn(work).await.unwrap_or_else(|_| Err(SandboxError::Stopping.into()))
    }

    /// Stops the node and returns how many sandboxes continue or were killed. Completes create
    /// calls in progress first.
    pub async fn close(&self, closing: Closing) -> Result<usize, SandboxError> {
        // From here on create calls are refused.
        self.tasks.close();
        let count = match closing {
            Closing::Keep => self.node_state.views().iter().filter(|view| view.state == State::Running).count(),
            Closing::End => match tokio::time::timeout(END_TIMEOUT, self.end_all()).await {
                Ok(ended) => ended?,
                Err(late) => return Err(EngineError::failed("ending all sandboxes", late).into()),
            },
        };
        self.node_state.stop.cancel();
        if tokio::time::timeout(STOP_TIMEOUT, self.tasks.wait()).await.is_err() {
            warn!("some sandboxes were still changing when the server stopped");
        }
        spares::remove(&self.node_state, self.node_state.spares.close()).await;
        Ok(count)
    }

    async fn end_all(&self) -> Result<usize, SandboxError> {
        let mut count = 0;
        // In a loop: a create call in progress may add another one.
        loop {
            let views = self.node_state.views();
            if views.is_empty() {
                return Ok(count);
            }
            let mut ends = futures::stream::iter(views)
                .map(|view| async move { self.kill(&view.record.id).await })
                .buffer_unordered(CONCURRENT_KILLS);
            loop {
                match tokio::time::timeout(SLOW_END, ends.next()).await {
                    Ok(Some(Ok(()))) => count += 1,
                    Ok(Some(Err(SandboxError::NotFound(_)))) => {}
                    Ok(Some(Err(error))) => return Err(error),
                    Ok(None) => break,
                    Err(_) => {
                        let views = self.node_state.views().into_iter();
                        let left: Vec<String> =
                            views.map(|view| format!("{} ({})", view.record.id, view.state)).collect();
                        warn!(?left, "sandboxes take long to end");
                    }
                }
            }
        }
    }
}

fn to_seen(view: View) -> Option<Seen> {
    let standing = match view.state {
        State::Running => PersistedState::Running,
        State::Pausing(kept) | State::Paused(kept) | State::Resuming(kept) => PersistedState::Paused(kept),
        State::Starting | State::Ending | State::Gone => return None,
    };
    Some(Seen { record: view.record, standing })
}

/// Whether there is no database, or an empty file, which SQLite takes for a new one.
fn is_absent(database: &Path) -> Result<bool, OpenError> {
    match database.metadata() {
        Ok(found) => Ok(found.len() == 0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(OpenError::Unreadable { path: database.to_owned(), source }),
    }
}
