//! The node: finds the owner of a sandbox and asks it, and reads what owners show.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::clock::{Clock, SystemClock};
use crate::config::SandboxesConfig;
use crate::egress::Egress;
use crate::error::{OpenError, SandboxError};
use crate::id::{FilesId, SandboxId};
use crate::lifecycle::{Kept, State};
use crate::log::Entry;
use crate::metrics::Sample;
use crate::owner::{Command, OnRunning, Owner, Reply, Resume, Resumed};
use crate::ports::{Engine, Machine, Records, TemplateRecords, VolumeRecords};
use crate::records::SqliteRecords;
use crate::sandbox::{OnTimeout, Record, Standing};
use crate::world::{Handle, Live, View, World};

/// An automatic resume gives at least this long: whoever sent the request cannot ask for more.
const LEAST_WAKE: Duration = Duration::from_secs(300);
/// Machines looked for at once when the server starts.
const ADOPTIONS: usize = 16;
/// Sandboxes ended at once when all are ended.
const ENDS: usize = 16;
/// Longest wait for the owners when the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// In the data directory: the records.
const DATABASE: &str = "node.sqlite";

/// What becomes of the sandboxes when the server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// They live on under their leases, and the next server finds them.
    Keep,
    /// All are killed, paused ones too, and their files go with them.
    End,
}

/// What to do when part of a data directory that was used before is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnMissing {
    /// Change nothing, and say what is missing.
    Refuse,
    /// Go on with what there is.
    Accept,
}

/// A sandbox as it can be seen from outside.
#[derive(Clone)]
pub struct Seen {
    pub record: Arc<Record>,
    /// One that is being paused counts as paused.
    pub standing: Standing,
}

/// Whether a sandbox can be reached.
pub enum Gate {
    Open(Arc<Live>),
    /// Paused, and wishes to be woken by traffic: see [`Node::wake`]. With its frozen machine, unless the
    /// sandbox is changing just now: whether a port is open can be known without waking it.
    Asleep(Option<Arc<dyn Machine>>),
    /// Being paused or resumed.
    Changing,
    Closed,
}

/// One machine's sandboxes. [`Node::close`] stops it; dropping it leaves its tasks to the runtime.
pub struct Node {
    pub(crate) world: Arc<World>,
    /// Everything the node has started.
    pub(crate) tasks: TaskTracker,
    /// Idempotency keys of creates that are under way.
    pub(crate) keys_in_progress: Arc<Mutex<HashSet<String>>>,
}

impl Node {
    /// Opens the sandboxes recorded in the directory `data`: adopts the living, cleans up after the
    /// dead.
    ///
    /// # Errors
    /// [`OpenError::DatabaseMissing`] when there are files and no database, unless that is
    /// accepted.
    pub async fn open(
        data: &Path,
        engine: Arc<dyn Engine>,
        config: SandboxesConfig,
        on_missing: OnMissing,
    ) -> Result<Arc<Self>, OpenError> {
        let database = data.join(DATABASE);
        // Before it is opened, which would make it: the next start would take the empty one for the
        // truth.
        if on_missing == OnMissing::Refuse && is_absent(&database)? {
            let files = engine.files().await?.len();
            if files > 0 {
                return Err(OpenError::DatabaseMissing { database, files });
            }
        }
        let records = SqliteRecords::open(&database).await?;
        Self::open_with(engine, Arc::new(records), Arc::new(SystemClock), config, &data.join("uploads")).await
    }

    /// As [`Node::open`], with every port chosen by the caller. Archives for builds are kept in `uploads`.
    pub async fn open_with(
        engine: Arc<dyn Engine>,
        records: Arc<dyn Records>,
        clock: Arc<dyn Clock>,
        config: SandboxesConfig,
        uploads: &Path,
    ) -> Result<Arc<Self>, OpenError> {
        let world = Arc::new(World::new(engine, records, clock, config, uploads));
        let node = Self { world, tasks: TaskTracker::new(), keys_in_progress: Arc::default() };
        node.take_over().await?;
        Ok(Arc::new(node))
    }

    /// How many files the records in the directory `data` name, without opening an engine.
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
        &self.world.config
    }

    pub fn now(&self) -> Timestamp {
        self.world.clock.now()
    }

    /// Brings records and machines into agreement. Afterwards nothing runs that no record names,
    /// and files that none names are in the trash.
    async fn take_over(&self) -> Result<(), OpenError> {
        let (engine, records, now) = (&self.world.engine, &self.world.records, self.world.clock.now());
        let (mut kept, mut ended_leases) = (Vec::new(), HashSet::new());
        for record in records.all().await? {
            let ended = record.standing == Standing::Running && record.end_at <= now;
            if ended && record.on_timeout == OnTimeout::Kill {
                records.remove(&record.id).await?;
                // Its files go to the trash: a clock that is wrong at start ends nothing for good.
                info!(sandbox = %record.id, "the lease ended while no server ran, sandbox killed; its files are in the trash");
                ended_leases.insert(FilesId::from(&record.id));
            } else {
                kept.push(record);
            }
        }
        self.world.templates.load().await?;
        self.world.templates.give_up_builds(now).await?;
        let mut files: HashSet<FilesId> = kept.iter().map(|record| FilesId::from(&record.id)).collect();
        let present = engine.files().await?;
        self.world.builds.layers.load(&present).await?;
        let templates = self.world.templates.all();
        files.extend(templates.iter().flat_map(|template| template.files().cloned()));
        files.extend(self.world.builds.layers.files());
        self.world.secrets.load().await?;
        self.world.volumes.load().await?;
        files.extend(self.world.volumes.all().iter().map(|volume| volume.files.clone()));
        // Rows of a newer version: what they name is not ours to remove.
        let unreadable = records.unreadable().await?;
        files.extend(unreadable.iter().flat_map(|row| row.files.iter().cloned()));
        let is_known =
            |id: &str| templates.iter().any(|template| template.id == id) || unreadable.iter().any(|row| row.id == id);
        self.world.builds.uploads.sweep(is_known).await.map_err(OpenError::Uploads)?;
        let machines = kept.iter().filter(|record| record.instance.is_some());
        let mut running: HashSet<SandboxId> = machines.map(|record| record.id.clone()).collect();
        running.extend(unreadable.iter().filter_map(|row| row.id.parse().ok()));
        let expected = running.len();
        let removed = engine.sweep(&running, &files).await?;
        self.report_swept(&removed, &ended_leases).await;
        for missing in files.difference(&present) {
            warn!(files = %missing, "a record names files that are missing from the pool");
        }
        let owners: Vec<(Owner, Handle)> = kept.into_iter().map(|record| self.owner_of(record)).collect();
        let mut found = self.adopt_all(&owners, &mut running).await;
        if running.len() < expected {
            // What could not be adopted must not run on unseen.
            engine.sweep(&running, &files).await?;
        }
        for (mut owner, handle) in owners {
            let id = owner.record().id.clone();
            let machine = found.remove(&id);
            self.world.register(id, handle);
            owner.restore(machine).await;
            self.tasks.spawn(owner.run());
        }
        self.tasks.spawn(Self::maintain_pool(Arc::clone(&self.world)));
        Ok(())
    }

    /// Says what a sweep took beyond the sandboxes whose lease has ended, and deletes the files of
    /// builds that were broken off: they are of no use without the build.
    async fn report_swept(&self, names: &[String], ended_leases: &HashSet<FilesId>) {
        let files = names.iter().filter_map(|name| name.parse::<FilesId>().ok());
        let unexpected = files.filter(|files| !ended_leases.contains(files));
        let (scratch, kept): (Vec<_>, Vec<_>) = unexpected.partition(FilesId::is_scratch);
        for files in &scratch {
            if let Err(error) = self.world.engine.delete_from_trash(files).await {
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

    /// Of a sandbox that an earlier server has left.
    fn owner_of(&self, record: Record) -> (Owner, Handle) {
        let state = match record.standing {
            Standing::Running => State::Running,
            Standing::Paused(kept) => State::Paused(kept),
        };
        Owner::new(&self.world, record, state)
    }

    /// Looks for the machines of `owners`; those that are not found leave `running`.
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
                let adopted = self.world.engine.adopt(&id, instance, egress).await;
                (id, adopted)
            })
            .buffer_unordered(ADOPTIONS);
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

    /// The sandbox `id`, if one can be seen.
    pub fn get(&self, id: &SandboxId) -> Option<Seen> {
        self.world.view(id).and_then(seen)
    }

    /// Every sandbox that can be seen, in no order.
    pub fn all(&self) -> Vec<Seen> {
        self.world.views().into_iter().filter_map(seen).collect()
    }

    /// How `id` can be reached now. Does not wake it.
    pub fn gate(&self, id: &SandboxId) -> Option<(Arc<Record>, Gate)> {
        let View { record, state, live, frozen } = self.world.view(id)?;
        let gate = match (state, live) {
            (State::Running, Some(live)) => Gate::Open(live),
            (State::Paused(Kept::Memory) | State::Pausing(Kept::Memory) | State::Resuming(_), _)
                if record.auto_resume =>
            {
                Gate::Asleep(frozen)
            }
            (State::Pausing(_) | State::Resuming(_), _) => Gate::Changing,
            _ => Gate::Closed,
        };
        Some((record, gate))
    }

    /// As [`Node::gate`]; while the sandbox is being paused or resumed, waits for the outcome, `patience` at most.
    pub async fn settled_gate(&self, id: &SandboxId, patience: Duration) -> Option<(Arc<Record>, Gate)> {
        let (record, gate) = self.gate(id)?;
        if !matches!(gate, Gate::Changing) {
            return Some((record, gate));
        }
        let mut view = self.world.find(id)?.view;
        let settled = view.wait_for(|view| !matches!(view.state, State::Pausing(_) | State::Resuming(_)));
        // Settled, gone or still changing: how it can be reached now is the answer either way.
        let _ = tokio::time::timeout(patience, settled).await;
        self.gate(id)
    }

    /// Resumes a paused sandbox because a client sends it traffic.
    pub async fn wake(&self, id: &SandboxId) -> Result<(Arc<Live>, Resumed), SandboxError> {
        let lease = self.world.view(id).map_or(LEAST_WAKE, |view| view.record.lease);
        let resume = Resume {
            timeout: lease.max(LEAST_WAKE),
            kept: Kept::Memory,
            on_running: OnRunning::Leave,
            on_timeout: None,
        };
        let resumed = self.ask(id, |reply| Command::Resume { resume, reply }).await?;
        let live = self.world.view(id).and_then(|view| view.live);
        live.map(|live| (live, resumed)).ok_or_else(|| SandboxError::NotFound(id.clone()))
    }

    /// Ends the sandbox, running or paused, and removes its files.
    pub async fn kill(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.ask(id, Command::Kill).await
    }

    pub async fn pause(&self, id: &SandboxId, kept: Kept, require_healthy_guest: bool) -> Result<(), SandboxError> {
        self.ask(id, |reply| Command::Pause { kept, require_healthy_guest, reply }).await
    }

    /// Makes sure that the sandbox runs for `timeout` at least. `kept` says what to bring back of a paused one.
    pub async fn connect(&self, id: &SandboxId, timeout: Duration, kept: Kept) -> Result<Resumed, SandboxError> {
        let resume = Resume { timeout, kept, on_running: OnRunning::Extend, on_timeout: None };
        self.ask(id, |reply| Command::Resume { resume, reply }).await
    }

    /// Resumes a paused sandbox; a running one is refused.
    pub async fn resume(
        &self,
        id: &SandboxId,
        timeout: Duration,
        kept: Kept,
        on_timeout: Option<OnTimeout>,
    ) -> Result<(), SandboxError> {
        let resume = Resume { timeout, kept, on_running: OnRunning::Refuse, on_timeout };
        self.ask(id, |reply| Command::Resume { resume, reply }).await.map(|_| ())
    }

    /// Makes the lease end `timeout` from now, sooner or later than it would have.
    pub async fn set_timeout(&self, id: &SandboxId, timeout: Duration) -> Result<(), SandboxError> {
        self.ask(id, |reply| Command::SetTimeout { timeout, reply }).await
    }

    /// Makes the lease end `duration` from now unless it ends later anyway.
    pub async fn refresh(&self, id: &SandboxId, duration: Duration) -> Result<(), SandboxError> {
        self.ask(id, |reply| Command::Refresh { duration, reply }).await
    }

    /// Replaces what the sandbox may reach, running or paused. Connections that are not allowed any more are cut.
    pub async fn set_egress(
        &self,
        id: &SandboxId,
        egress: Egress,
        allow_internet: Option<bool>,
    ) -> Result<(), SandboxError> {
        let egress = Box::new(egress);
        self.ask(id, |reply| Command::SetEgress { egress, allow_internet, reply }).await
    }

    /// Readings of the sandbox within both bounds, oldest first.
    pub fn metrics(
        &self,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
    ) -> Result<Vec<Sample>, SandboxError> {
        let handle = self.world.find(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        Ok(handle.notes.readings().between(start, end))
    }

    pub fn latest_metric(&self, id: &SandboxId) -> Option<Sample> {
        self.world.find(id)?.notes.readings().latest()
    }

    /// What happened in and to the sandbox, oldest first.
    pub async fn log(&self, id: &SandboxId) -> Result<Vec<Entry>, SandboxError> {
        let handle = self.world.find(id).ok_or_else(|| SandboxError::NotFound(id.clone()))?;
        self.ask(id, Command::ReadLog).await?;
        let entries = handle.notes.log().entries();
        Ok(entries)
    }

    async fn ask<T>(&self, id: &SandboxId, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, SandboxError> {
        self.world.ask(id, command).await
    }

    /// Does `work` to its end even if the caller stops waiting: half of it would leave something behind.
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

    /// Stops the node and says how many sandboxes live on, or were ended. Creates that are under way are completed first.
    pub async fn close(&self, closing: Closing) -> Result<usize, SandboxError> {
        // Refuses further creates.
        self.tasks.close();
        let count = match closing {
            Closing::Keep => self.world.views().iter().filter(|view| view.state == State::Running).count(),
            Closing::End => self.end_all().await?,
        };
        self.world.stop.cancel();
        if tokio::time::timeout(STOP_PATIENCE, self.tasks.wait()).await.is_err() {
            warn!("some sandboxes were still changing when the server stopped");
        }
        Ok(count)
    }

    async fn end_all(&self) -> Result<usize, SandboxError> {
        let mut count = 0;
        // More than once: a create that was under way may add one meanwhile.
        loop {
            let views = self.world.views();
            if views.is_empty() {
                return Ok(count);
            }
            let mut ends = futures::stream::iter(views)
                .map(|view| async move { self.kill(&view.record.id).await })
                .buffer_unordered(ENDS);
            while let Some(ended) = ends.next().await {
                match ended {
                    Ok(()) => count += 1,
                    Err(SandboxError::NotFound(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

fn seen(view: View) -> Option<Seen> {
    let standing = match view.state {
        State::Running => Standing::Running,
        State::Pausing(kept) | State::Paused(kept) | State::Resuming(kept) => Standing::Paused(kept),
        State::Starting | State::Ending | State::Gone => return None,
    };
    Some(Seen { record: view.record, standing })
}

/// Whether there is no database, or one of no length: as SQLite sees it, that is a new one.
fn is_absent(database: &Path) -> Result<bool, OpenError> {
    match database.metadata() {
        Ok(found) => Ok(found.len() == 0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(OpenError::Unreadable { path: database.to_owned(), source }),
    }
}
