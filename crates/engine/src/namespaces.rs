//! The engine of Linux namespaces: boots, adopts and sweeps sandboxes, and keeps their files.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cgroup::{Calls, CgroupError, Hierarchy, ProcessShares, ProcessorClasses};
use durable::Unwritable;
use egress::{EgressConfig, Policy};
use parking_lot::Mutex;
use protocol::SandboxId;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::task::AbortHandle;
use tracing::{error, info, warn};

use crate::boot::{
    BootRecord, BootResources, Network, SandboxBuilder, StartedSandbox, WRITABLE, overlays_of, start_time_of,
};
use crate::delegation;
use crate::error::NamespacesError;
use crate::files_id::FilesId;
use crate::group::Groups;
use crate::launchers::{ExpectedFiles, Launcher};
use crate::machine::{Inner, NamespacesMachine, remove_socket};
use crate::pool::{Pool, PoolError};
use crate::port::{
    Boot, Engine, EngineCapabilities, EngineError, Fill, Instance, IsolationClass, Machine, RootError, Trash, Trashed,
};
use crate::privilege::{Privilege, rootless_limitations};
use crate::root;
use crate::rootfs::{BaseTemplate, Template};
use crate::rootless::{Identity, note_ids};
use crate::sys::watch;
use crate::volume::{VolumeDirectory, holds_content, volume_files};
use crate::{EngineConfig, LAYERS, blocking};

/// The sandboxes of one data directory on this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Namespaces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    builder: SandboxBuilder,
    base: BaseTemplate,
    /// An empty directory.
    nothing: PathBuf,
    egress: Arc<EgressConfig>,
    /// Watches the host's free space as long as the engine lives.
    guard: OnceLock<AbortHandle>,
    /// Writes the pool out as long as the engine lives.
    write_back: OnceLock<AbortHandle>,
    /// Share process numbers and processors as long as the engine lives.
    balances: OnceLock<[AbortHandle; 2]>,
    calls: Arc<Calls>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let tasks = [&self.guard, &self.write_back].into_iter().filter_map(OnceLock::get);
        for task in tasks.chain(self.balances.get().into_iter().flatten()) {
            task.abort();
        }
    }
}

/// Delay until the next spare launcher is prepared. Shorter than the time between two creates of a
/// caller that uses what it creates.
const REFILL_DELAY: Duration = Duration::from_millis(15);
/// How often the host's free space is checked: other programs write to it too.
const GUARD_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two syncs of the pool. A power cut costs at most the writes of this time and of the
/// sync; docs/durability.md promises 30 s. The kernel alone takes more than twice as long, because
/// btrfs commits no data that it has not written back yet.
const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(15);
/// Between two readings of the pids and the processor time of all sandboxes. A fork bomb starts
/// some thousands in this time, and a quarter of all is left when its limit is lowered.
const BALANCE_INTERVAL: Duration = Duration::from_millis(100);
/// Each of the two takes at most one part in this many of one processor, whatever the number of
/// sandboxes.
const BALANCE_PART: u32 = 50;
/// For the kernel to release a file system whose last processes have ended.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);

impl Namespaces {
    /// Mounts the pool and prepares for sandboxes. Those that run already are not touched: see
    /// [`Engine::adopt`] and [`Engine::sweep`].
    pub async fn open(config: EngineConfig) -> Result<Self, NamespacesError> {
        let engine = Self::build(config).await?;
        let guard = tokio::spawn(guard_space(Arc::downgrade(&engine.0)));
        engine.0.guard.set(guard.abort_handle()).expect("a new engine has no guard yet");
        let write_back = tokio::spawn(write_back(Arc::downgrade(&engine.0)));
        engine.0.write_back.set(write_back.abort_handle()).expect("a new engine has no such task yet");
        if let Groups::Cgroups(hierarchy) = &engine.0.builder.groups {
            let processes = tokio::spawn(balance_processes(hierarchy.clone()));
            let processors = tokio::spawn(balance_processors(hierarchy.clone(), Arc::clone(&engine.0.calls)));
            let tasks = [processes.abort_handle(), processors.abort_handle()];
            engine.0.balances.set(tasks).expect("a new engine has no such tasks yet");
        }
        Ok(engine)
    }

    async fn build(config: EngineConfig) -> Result<Self, NamespacesError> {
        blocking(move || {
            fs::create_dir_all(&config.data).map_err(NamespacesError::io("make the data directory"))?;
            let data = config.data.canonicalize().map_err(NamespacesError::io("find the data directory"))?;
            // Set-uid files of sandboxes are in there, with ids that mean something on the host.
            fs::set_permissions(&data, fs::Permissions::from_mode(0o700))
                .map_err(NamespacesError::io("close the data directory to others"))?;
            let (identity, privilege) = (Identity::for_data(&data), Privilege::detect());
            note_ids(&data, privilege).map_err(NamespacesError::io("write to the data directory"))?;
            let groups = delegation::groups(privilege, identity, &config.runtime)?;
            let pool = open_pool(&config, &groups)?;
            let layers = data.join(LAYERS);
            let nothing = layers.join("nothing");
            let base = BaseTemplate::open(layers, privilege).map_err(NamespacesError::io("open the layers"))?;
            fs::create_dir_all(&nothing).map_err(NamespacesError::io("make an empty layer"))?;
            let builder = SandboxBuilder::open(&config, pool, groups, privilege, identity)?;
            builder.launchers.refill(|_| None);
            let egress = Arc::new(config.egress);
            Ok(Self(Arc::new(Shared {
                builder,
                base,
                nothing,
                egress,
                guard: OnceLock::new(),
                write_back: OnceLock::new(),
                balances: OnceLock::new(),
                calls: Arc::default(),
            })))
        })
        .await
    }

    /// The template made of the host itself. Built again at most a few seconds after the host has
    /// changed.
    pub async fn base_template(&self) -> Result<Template, NamespacesError> {
        if let Some(template) = self.0.base.checked() {
            return Ok(template);
        }
        let shared = self.0.clone();
        blocking(move || shared.base_template()).await
    }

    /// The template that the sandbox `id` boots from: an own root if its files are one, else the
    /// base.
    async fn template_of(&self, id: &SandboxId) -> Result<Template, NamespacesError> {
        if root::is_own(&self.0.builder.pool.path_of(id.as_str())) {
            return Ok(root::template(self.0.nothing.clone()));
        }
        self.base_template().await
    }

    /// Starts a sandbox on `template` and returns once its process 1 is the guest. Its files are
    /// those of the last boot under that id.
    ///
    /// When it fails, or its future is dropped, nothing is left but those files.
    pub async fn boot_from(&self, mut boot: Boot, template: Template) -> Result<NamespacesMachine, NamespacesError> {
        // A mount inside of another one is mounted after it.
        boot.volumes.sort_by(|one, other| one.at.cmp(&other.at));
        let shared = self.0.clone();
        let mut started = blocking(move || shared.builder.start(boot, template, &shared.egress)).await?;
        tokio::spawn(refill_soon(Arc::downgrade(&self.0), started.launcher.take()));
        self.build_machine(started)
    }

    async fn find(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<NamespacesMachine>, NamespacesError> {
        let (shared, id) = (self.0.clone(), id.clone());
        let found = blocking(move || shared.find(&id, instance, egress)).await?;
        found.map(|started| self.build_machine(started)).transpose()
    }

    fn build_machine(&self, started: StartedSandbox) -> Result<NamespacesMachine, NamespacesError> {
        let StartedSandbox { instance, network: Network { namespace: network, egress }, volume, mut resources, .. } =
            started;
        let process = watch::readable(resources.process.take().expect("a started sandbox has a process 1"));
        let process = process.map_err(NamespacesError::io("watch process 1"))?;
        resources.keep();
        Ok(NamespacesMachine::new(Inner {
            name: resources.name.clone(),
            instance,
            process,
            network,
            group: resources.group.clone(),
            volume,
            socket: resources.socket.clone(),
            egress: Mutex::new(Some(egress)),
            calls: Arc::clone(&self.0.calls),
            ids: Mutex::new(resources.ids.take()),
        }))
    }

    /// Removes the copies that killed backups have left. The caller makes sure that no backup runs.
    pub async fn remove_frozen_copies(&self) -> Result<(), EngineError> {
        self.change("cannot remove the copies of a backup", |builder| Ok(builder.pool.remove_frozen_copies()?)).await
    }

    /// Runs blocking work that changes nothing.
    async fn read<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&SandboxBuilder) -> Result<T, NamespacesError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let shared = self.0.clone();
        blocking(move || work(&shared.builder)).await.map_err(|error| error.explain(what))
    }

    /// Runs blocking work that changes files.
    async fn change<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&SandboxBuilder) -> Result<T, NamespacesError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let shared = self.0.clone();
        blocking(move || work(&shared.builder)).await.map_err(self.failed(what))
    }

    /// Converts the error of a change. While the pool is read-only, that is the reason of every
    /// failure; a disk that refused a change is named with what to do.
    fn failed(&self, what: &'static str) -> impl FnOnce(NamespacesError) -> EngineError + '_ {
        move |error| {
            let pool = &self.0.builder.pool;
            match pool.fault() {
                Some(fault) => EngineError::ReadOnly(fault),
                None => error.find_disk_refusal(pool.directories()).unwrap_or_else(|| error.explain(what)),
            }
        }
    }
}

#[async_trait]
impl Trash for Namespaces {
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError> {
        let names = self.read("cannot list files", |builder| Ok(builder.pool.list()?)).await?;
        // Directories whose names are no ids do not belong to the server.
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    async fn write_note(&self, files: &FilesId, note: Value) -> Result<(), EngineError> {
        let files = files.clone();
        self.change("cannot describe files", move |builder| Ok(builder.pool.write_note(files.as_str(), &note)?)).await
    }

    async fn note(&self, files: &FilesId) -> Result<Option<Value>, EngineError> {
        let files = files.clone();
        self.read("cannot read the description of files", move |builder| Ok(builder.pool.note(files.as_str()))).await
    }

    async fn is_volume(&self, files: &FilesId) -> Result<bool, EngineError> {
        Ok(volume_files(&self.0.builder.pool.path_of(files.as_str())).is_dir())
    }

    async fn trash(&self) -> Result<Vec<Trashed>, EngineError> {
        self.read("cannot list the trash", |builder| Ok(builder.pool.trash()?)).await
    }

    async fn take_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        let files = files.clone();
        self.change("cannot take files from the trash", move |builder| {
            Ok(builder.pool.take_from_trash(files.as_str())?)
        })
        .await
    }

    async fn record_watched(&self, files: &FilesId, watched: Duration) -> Result<(), EngineError> {
        let files = files.clone();
        self.change("cannot record how long files have been in the trash", move |builder| {
            Ok(builder.pool.record_watched(files.as_str(), watched)?)
        })
        .await
    }

    async fn delete_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        let files = files.clone();
        self.read("cannot delete files from the trash", move |builder| {
            Ok(builder.pool.delete_from_trash(files.as_str())?)
        })
        .await
    }
}

#[async_trait]
impl Engine for Namespaces {
    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            isolation: IsolationClass::Namespaces,
            memory_snapshots: false,
            live_fork: false,
            instant_copies: self.0.builder.pool.copies_are_instant(),
        }
    }

    async fn environment(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, EngineError> {
        let template = self.template_of(id).await.map_err(self.failed("cannot prepare the template"))?;
        Ok(template.env)
    }

    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>, EngineError> {
        let template = self.template_of(&boot.id).await.map_err(self.failed("cannot prepare the template"))?;
        let machine = self.boot_from(boot, template).await.map_err(self.failed("cannot boot the sandbox"))?;
        Ok(Arc::new(machine))
    }

    async fn adopt(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<Arc<dyn Machine>>, EngineError> {
        let found = self.find(id, instance, egress).await.map_err(self.failed("cannot adopt the sandbox"))?;
        Ok(found.map(|machine| Arc::new(machine) as Arc<dyn Machine>))
    }

    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<FilesId>, EngineError> {
        let (running, files) = (running.clone(), files.clone());
        self.change("cannot clean up after sandboxes", move |builder| builder.sweep(&running, &files)).await
    }

    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError> {
        let files = files.clone();
        self.change("cannot remove files", move |builder| Ok(builder.pool.remove(files.as_str())?)).await
    }

    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError> {
        let (from, to) = (from.clone(), to.clone());
        self.change("cannot copy files", move |builder| builder.copy(from.as_str(), to.as_str())).await
    }

    async fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), EngineError> {
        let (ids, from) = (ids.to_vec(), from.cloned());
        self.change("cannot make files ahead", move |builder| builder.make_spares(&ids, from.as_ref())).await
    }

    async fn take_spare(&self, id: &SandboxId) -> Result<bool, EngineError> {
        let id = id.clone();
        self.change("cannot take files made ahead", move |builder| Ok(builder.pool.take_spare(id.as_str())?)).await
    }

    fn expect(&self, next: &[SandboxId]) {
        if self.0.builder.launchers.expect(next) {
            tokio::spawn(refill_soon(Arc::downgrade(&self.0), None));
        }
    }

    async fn remove_spare(&self, id: &SandboxId) -> Result<(), EngineError> {
        let id = id.clone();
        self.change("cannot remove files made ahead", move |builder| {
            builder.launchers.forget(id.as_str());
            Ok(builder.pool.remove_spare(id.as_str())?)
        })
        .await
    }

    async fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), EngineError> {
        let keep = keep.clone();
        self.change("cannot sort out files made ahead", move |builder| builder.settle_spares(&keep)).await
    }

    async fn make_root(&self, files: &FilesId, limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError> {
        let files = files.clone();
        let made = self
            .change("cannot make a root", move |builder| builder.make_root(files.as_str(), limit_bytes, fill))
            .await?;
        made.map_err(RootError::Fill)
    }

    async fn sync_files(&self) -> Result<(), EngineError> {
        self.change("cannot write files out", |builder| {
            builder.pool.commit().map_err(NamespacesError::io("write the pool out"))
        })
        .await
    }

    async fn egress_certificate(&self) -> Result<String, EngineError> {
        let trust = self.0.egress.trust.clone();
        self.change("cannot open the egress's authority", move |_| {
            let missing =
                || NamespacesError::Invalid("the engine was opened without certificates for the egress".to_owned());
            let opened = trust.ok_or_else(missing)?.certificate_pem();
            opened.map_err(|error| NamespacesError::io("open the egress's authority")(io::Error::other(error)))
        })
        .await
    }

    fn rootless_limitations(&self) -> Vec<&'static str> {
        rootless_limitations(self.0.builder.privilege, self.0.builder.groups.has_limits())
    }

    async fn create_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        let files = files.clone();
        self.change("cannot make a volume", move |builder| builder.create_volume(files.as_str(), limit_bytes)).await
    }

    async fn open_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        let files = files.clone();
        self.change("cannot open a volume", move |builder| builder.open_volume(files.as_str(), limit_bytes)).await
    }

    fn fault(&self) -> Option<Unwritable> {
        self.0.builder.pool.fault()
    }
}

/// Opens the pool. One that the kernel aborted can be mounted again only when no process uses it:
/// the sandboxes that do are ended, and their files stay.
fn open_pool(config: &EngineConfig, groups: &Groups) -> Result<Pool, NamespacesError> {
    let open = || Pool::open(&config.data, config.pool_bytes);
    let held = match open() {
        Err(error @ PoolError::Held { .. }) => error,
        other => return Ok(other?),
    };
    let names = groups.list();
    warn!(error = &held as &dyn std::error::Error, sandboxes = names.len(), "ending sandboxes to mount the pool again");
    for name in names {
        if let Err(error) = end_group(groups, &name) {
            // If it still uses the pool, the next attempt to mount reports that.
            warn!(sandbox = name, error = &error as &dyn std::error::Error, "a sandbox could not be ended");
        }
    }
    groups.end_strays();
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match open() {
            // The kernel unmounts the mounts of a process after the process has ended.
            Err(PoolError::Held { .. }) if Instant::now() < deadline => thread::sleep(RELEASE_INTERVAL),
            Ok(pool) => {
                warn!("the pool is mounted again; what sandboxes had not synced when it was aborted is lost");
                return Ok(pool);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends a sandbox by its group, whichever server booted it.
fn end_group(groups: &Groups, name: &str) -> Result<(), NamespacesError> {
    let Some(group) = groups.open_existing(name) else { return Ok(()) };
    let processes = group.children()?.into_iter().filter_map(open_process).collect::<Vec<_>>();
    group.kill_all()?;
    for process in processes {
        // At most one of them is a child of this process, which has to reap it; for the others the
        // call fails immediately.
        let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
    }
    group.remove()
}

/// Waits for the end of the launcher that was `used`, and spawns one for the next boot. Both after
/// a delay that leaves the processors to the guest's start and, usually, its first command.
async fn refill_soon(engine: Weak<Shared>, used: Option<Launcher>) {
    tokio::time::sleep(REFILL_DELAY).await;
    let refill = move || {
        drop(used);
        if let Some(shared) = engine.upgrade() {
            shared.builder.launchers.refill(|name| shared.expected_files(name));
        }
    };
    drop(tokio::task::spawn_blocking(refill));
}

/// Keeps the host's free space until the engine is dropped. Logs changes of the state, not every
/// check.
async fn guard_space(engine: Weak<Shared>) {
    let (mut trouble, mut fault) = (None, None);
    loop {
        tokio::time::sleep(GUARD_INTERVAL).await;
        let Some(shared) = engine.upgrade() else { return };
        let guarded = blocking(move || {
            let pool = &shared.builder.pool;
            let guarded = pool.guard().map_err(|error| error.to_string()).err();
            Ok((guarded, pool.fault()))
        });
        let Ok((found_trouble, found_fault)) = guarded.await else { continue };
        if found_fault != fault {
            match &found_fault {
                Some(fault) => error!(%fault, "sandboxes cannot write any more"),
                None => info!("the pool is writable again"),
            }
            fault = found_fault;
        }
        if found_trouble != trouble {
            match &found_trouble {
                Some(error) => warn!(error, "the host's free space is not guarded"),
                None => info!("the host's free space is guarded again"),
            }
            trouble = found_trouble;
        }
    }
}

/// Shares pids between sandboxes until the engine aborts the task.
async fn balance_processes(hierarchy: Hierarchy) {
    let mut shares = ProcessShares::new(hierarchy);
    repeat("process numbers", move || shares.balance()).await;
}

/// Shares processors between sandboxes until the engine aborts the task.
async fn balance_processors(hierarchy: Hierarchy, calls: Arc<Calls>) {
    let count = thread::available_parallelism().map_or(1, NonZero::get);
    let Ok(mut classes) = blocking(move || Ok(ProcessorClasses::new(hierarchy, count))).await else { return };
    repeat("processors", move || classes.balance(&calls.take())).await;
}

/// Calls `balance` at an interval. Logs changes of the state, not every call.
async fn repeat(what: &str, mut balance: impl FnMut() -> Result<(), CgroupError> + Send + 'static) {
    let (mut trouble, mut pause) = (None, BALANCE_INTERVAL);
    loop {
        tokio::time::sleep(pause).await;
        let balanced = blocking(move || {
            let start = processor_time();
            let found = balance().err().map(|error| error.to_string());
            Ok((balance, found, processor_time().saturating_sub(start)))
        });
        // Fails when the runtime shuts down.
        let Ok((same, found, took)) = balanced.await else { return };
        balance = same;
        pause = BALANCE_INTERVAL.max(took * BALANCE_PART);
        if found != trouble {
            if let Some(error) = &found {
                warn!(error, "{what} are not shared between sandboxes");
            }
            trouble = found;
        }
    }
}

/// Processor time of the calling thread: on a busy machine a thread waits much longer than it
/// computes.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Syncs the pool until the engine is dropped. A task apart from [`guard_space`], which no slow
/// disk may delay.
async fn write_back(engine: Weak<Shared>) {
    let mut trouble = None;
    loop {
        tokio::time::sleep(WRITE_BACK_INTERVAL).await;
        let Some(shared) = engine.upgrade() else { return };
        let written = blocking(move || Ok(shared.builder.pool.write_back().map_err(|error| error.to_string()).err()));
        let Ok(found) = written.await else { continue };
        if found != trouble {
            match &found {
                Some(error) => warn!(error, "what sandboxes wrote cannot be written to the disk"),
                None => info!("what sandboxes write gets to the disk again"),
            }
            trouble = found;
        }
    }
}

impl Shared {
    /// Blocks.
    fn base_template(&self) -> Result<Template, NamespacesError> {
        let in_use = || {
            let mut layers = HashSet::new();
            for name in self.builder.pool.list()? {
                let record = BootRecord::try_read(&self.builder.pool.path_of(&name));
                let record = record.map_err(NamespacesError::io(format!("read the record of volume {name}")))?;
                layers.extend(record.into_iter().flat_map(|record| record.layers));
            }
            Ok(layers)
        };
        self.base.get(in_use).map_err(NamespacesError::io("build the base template"))
    }

    /// The spare files `name` and their overlays; `None` also while no template can be built.
    fn expected_files(&self, name: &str) -> Option<ExpectedFiles> {
        let volume = self.builder.pool.spare_path(name);
        let writable = volume.join(WRITABLE);
        if !writable.is_dir() {
            return None;
        }
        let template =
            if root::is_own(&volume) { root::template(self.nothing.clone()) } else { self.base_template().ok()? };
        Some(ExpectedFiles { writable, overlays: overlays_of(template) })
    }

    fn find(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<StartedSandbox>, NamespacesError> {
        let name = id.to_string();
        let Some(group) = self.builder.groups.open_existing(&name) else { return Ok(None) };
        let Some(process) = open_process(instance.pid) else { return Ok(None) };
        // Checked after the pidfd is open: from here on the pid cannot be reused unnoticed.
        let same = start_time_of(instance.pid).is_ok_and(|start_time| start_time == instance.start_time);
        if !same || !group.holds(instance.pid)? || has_ended(&process) {
            return Ok(None);
        }
        let socket = self.builder.socket_of(&name);
        let network = Network::connect(instance.pid, &self.egress, egress, &socket)
            .map_err(NamespacesError::io("connect the sandbox to the network"))?;
        let pool = &self.builder.pool;
        let Some(BootRecord { limit_bytes, shared_bytes, pids, .. }) = BootRecord::read(&pool.path_of(&name)) else {
            return Ok(None);
        };
        let volume = pool.open_volume(&name, limit_bytes)?;
        volume.set_allowance(shared_bytes).map_err(NamespacesError::io(format!("limit volume {name}")))?;
        if let Some(pids) = pids {
            // The previous server may have lowered it, see [`ProcessShares`].
            group.limit_processes(pids)?;
        }
        let ids = self.builder.ranges.adopt(instance.pid);
        let resources = BootResources::for_adopted(name, group, socket, ids, process);
        Ok(Some(StartedSandbox { instance, network, volume, resources, launcher: None }))
    }
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()
}

fn has_ended(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    poll(&mut watched, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl SandboxBuilder {
    /// What cannot be ended or removed is logged and left: it must not keep the server from
    /// starting.
    fn sweep(
        &self,
        keep_running: &HashSet<SandboxId>,
        keep_files: &HashSet<FilesId>,
    ) -> Result<Vec<FilesId>, NamespacesError> {
        let mut removed = BTreeSet::new();
        for name in self.groups.list() {
            if keep_running.contains(name.as_str()) {
                continue;
            }
            match end_group(&self.groups, &name) {
                Ok(()) => drop(removed.insert(name)),
                Err(error) => warn!(
                    sandbox = name,
                    error = &error as &dyn std::error::Error,
                    "processes that no record names could not be ended; the next start tries again"
                ),
            }
        }
        self.groups.end_strays();
        removed.extend(self.sweep_sockets(keep_running));
        for name in self.pool.list()? {
            let is_named = keep_files.contains(name.as_str()) || keep_running.contains(name.as_str());
            if is_named || holds_content(&self.pool.path_of(&name)) {
                continue;
            }
            match self.pool.move_to_trash(&name) {
                Ok(()) => {
                    removed.insert(name);
                }
                // A full disk, for example: the files stay where they are until the next start.
                Err(error) => warn!(name, %error, "files that no record names could not be moved to the trash"),
            }
        }
        Ok(removed.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Removes the sockets of sandboxes that do not run; returns their names.
    fn sweep_sockets(&self, keep_running: &HashSet<SandboxId>) -> Vec<String> {
        let listed = match fs::read_dir(&self.runtime) {
            Ok(listed) => listed,
            Err(error) => {
                warn!(directory = %self.runtime.display(), %error, "stale sockets are left");
                return Vec::new();
            }
        };
        let mut removed = Vec::new();
        for entry in listed.flatten() {
            let file = entry.file_name();
            if let Some(name) = file.to_str().and_then(|file| file.strip_suffix(".sock"))
                && name.parse::<FilesId>().is_ok()
                && !keep_running.contains(name)
            {
                match remove_socket(&entry.path()) {
                    Ok(()) => removed.push(name.to_owned()),
                    Err(error) => {
                        warn!(sandbox = name, error = &error as &dyn std::error::Error, "a stale socket is left");
                    }
                }
            }
        }
        removed
    }
}
