//! The engine as its caller sees it: boot, adopt, sweep.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use serde_json::Value;
use tokio::task::AbortHandle;
use tracing::{error, info, warn};

use crate::boot::{Network, Record, Scaffold, Started, Workshop, check_name, start_time_of};
use crate::delegation;
use crate::error::EngineError;
use crate::group::Groups;
use crate::machine::{Inner, Machine, remove_socket};
use crate::net::{EgressConfig, Policy};
use crate::pool::{Pool, PoolError, PoolFault, Trashed};
use crate::root::{self, NewRoot};
use crate::rootfs::{BaseTemplate, Template};
use crate::rootless::{Identity, note_ids};
use crate::standing::{Standing, differences};
use crate::sys::watch;
use crate::volume::{VolumeDirectory, holds_content, volume_files};
use crate::{Boot, EngineConfig, Instance, LAYERS, blocking};

/// The sandboxes of one data directory on this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    workshop: Workshop,
    base: BaseTemplate,
    /// An empty directory.
    nothing: PathBuf,
    egress: Arc<EgressConfig>,
    /// Watches the host's free space as long as the engine lives.
    guard: OnceLock<AbortHandle>,
    /// Writes the pool out as long as the engine lives.
    write_back: OnceLock<AbortHandle>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        for task in [&self.guard, &self.write_back].into_iter().filter_map(OnceLock::get) {
            task.abort();
        }
    }
}

/// Shorter than the time between two creates of a caller who uses what it creates.
const REFILL_DELAY: Duration = Duration::from_millis(15);
/// How often the host's free space is looked at: others write to it too.
const GUARD_INTERVAL: Duration = Duration::from_secs(1);
/// Between two times that the pool is written out. A power cut costs at most the writes of this
/// time and of the write-out, docs/durability.md promises 30 s; the kernel alone takes more than
/// twice as long, because btrfs commits no data that it has not written back yet.
const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(15);
/// For the kernel to release a file system whose last processes have ended.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);

impl Engine {
    /// Mounts the pool and makes ready for sandboxes. Those that run already are left alone: see [`Engine::adopt`] and
    /// [`Engine::sweep`].
    pub async fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let engine = Self::build(config).await?;
        let guard = tokio::spawn(guard_space(Arc::downgrade(&engine.0)));
        engine.0.guard.set(guard.abort_handle()).expect("a new engine has no guard yet");
        let write_back = tokio::spawn(write_back(Arc::downgrade(&engine.0)));
        engine.0.write_back.set(write_back.abort_handle()).expect("a new engine has no such task yet");
        Ok(engine)
    }

    async fn build(config: EngineConfig) -> Result<Self, EngineError> {
        blocking(move || {
            fs::create_dir_all(&config.data).map_err(EngineError::io("make the data directory"))?;
            let data = config.data.canonicalize().map_err(EngineError::io("find the data directory"))?;
            // Set-uid files of sandboxes lie in there, with ids that mean something on the host.
            fs::set_permissions(&data, fs::Permissions::from_mode(0o700))
                .map_err(EngineError::io("close the data directory to others"))?;
            let (identity, standing) = (Identity::of(&data), Standing::of_this_process());
            note_ids(&data, standing).map_err(EngineError::io("write to the data directory"))?;
            let groups = delegation::groups(standing, identity, &config.runtime)?;
            let pool = open_pool(&config, &groups)?;
            let layers = data.join(LAYERS);
            let nothing = layers.join("nothing");
            let base = BaseTemplate::open(layers, standing).map_err(EngineError::io("open the layers"))?;
            fs::create_dir_all(&nothing).map_err(EngineError::io("make an empty layer"))?;
            let workshop = Workshop::open(&config, pool, groups, standing, identity)?;
            workshop.launchers.refill();
            let egress = Arc::new(config.egress);
            Ok(Self(Arc::new(Shared {
                workshop,
                base,
                nothing,
                egress,
                guard: OnceLock::new(),
                write_back: OnceLock::new(),
            })))
        })
        .await
    }

    /// The template made of the host itself. Made anew when the host has changed, a few seconds later at most.
    pub async fn base_template(&self) -> Result<Template, EngineError> {
        let shared = self.0.clone();
        blocking(move || {
            let in_use = || {
                let names = shared.workshop.pool.list().unwrap_or_default();
                let records = names.iter().filter_map(|name| Record::read(&shared.workshop.pool.path_of(name)));
                records.flat_map(|record| record.layers).collect()
            };
            shared.base.get(in_use).map_err(EngineError::io("build the base template"))
        })
        .await
    }

    /// What the sandbox `name` boots from: a root of its own if its files are one, else the base.
    pub async fn template_of(&self, name: &str) -> Result<Template, EngineError> {
        check_name(name)?;
        if root::is_own(&self.0.workshop.pool.path_of(name)) {
            return Ok(root::template(self.0.nothing.clone()));
        }
        self.base_template().await
    }

    /// Makes files `name` with a root of their own, of at most `limit_bytes`, which `fill` fills: nothing of the base is in it. Gives what
    /// such a root lacks that sandboxes should have. When `fill` fails nothing is left; a crash leaves what the next sweep removes.
    pub async fn make_root<E: Send + 'static>(
        &self,
        name: &str,
        limit_bytes: u64,
        fill: impl FnOnce(&NewRoot) -> Result<(), E> + Send + 'static,
    ) -> Result<Result<Vec<String>, E>, EngineError> {
        check_name(name)?;
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || shared.workshop.make_root(&name, limit_bytes, fill)).await
    }

    /// Starts a sandbox and returns once its process 1 is the guest. Its files are those of the last boot under that name.
    ///
    /// When it fails, or its future is dropped, nothing is left but those files.
    pub async fn boot(&self, boot: Boot) -> Result<Machine, EngineError> {
        let shared = self.0.clone();
        let started = blocking(move || shared.workshop.start(boot, &shared.egress)).await?;
        tokio::spawn(refill_soon(Arc::downgrade(&self.0)));
        self.machine(started)
    }

    /// The machine that an earlier server booted as `name`, if it is still alive. Frozen stays frozen.
    pub async fn adopt(&self, name: &str, instance: Instance, egress: Policy) -> Result<Option<Machine>, EngineError> {
        check_name(name)?;
        let (shared, name) = (self.0.clone(), name.to_owned());
        let found = blocking(move || shared.find(name, instance, egress)).await?;
        found.map(|started| self.machine(started)).transpose()
    }

    /// What sandboxes must trust so that rules can set headers of their TLS requests: a certificate as PEM.
    pub async fn egress_certificate(&self) -> Result<String, EngineError> {
        let trust = self.0.egress.trust.clone();
        let missing = || EngineError::Invalid("the engine was opened without certificates for the egress".to_owned());
        let trust = trust.ok_or_else(missing)?;
        blocking(move || {
            trust
                .certificate_pem()
                .map_err(|error| EngineError::io("open the egress's authority")(io::Error::other(error)))
        })
        .await
    }

    fn machine(&self, started: Started) -> Result<Machine, EngineError> {
        let Started { instance, network: Network { namespace: network, egress }, volume, mut scaffold } = started;
        let process = watch::readable(scaffold.process.take().expect("a started sandbox has a process 1"));
        let process = process.map_err(EngineError::io("watch process 1"))?;
        scaffold.keep();
        Ok(Machine::new(Inner {
            name: scaffold.name.clone(),
            instance,
            process,
            network,
            group: scaffold.group.clone(),
            volume,
            socket: scaffold.socket.clone(),
            egress: Mutex::new(Some(egress)),
            ids: Mutex::new(scaffold.ids.take()),
        }))
    }

    /// Ends every sandbox that is not in `keep_running` and moves the files of all that are not in
    /// `keep_files` to the trash, but for volumes that have content, which stay where they are.
    /// Gives the names of what was ended or moved. Finds what a server or launcher that was killed
    /// left behind.
    pub async fn sweep(
        &self,
        keep_running: &HashSet<String>,
        keep_files: &HashSet<String>,
    ) -> Result<Vec<String>, EngineError> {
        let (shared, keep_running, keep_files) = (self.0.clone(), keep_running.clone(), keep_files.clone());
        blocking(move || shared.workshop.sweep(&keep_running, &keep_files)).await
    }

    /// Removes the files of a sandbox that does not run; absent is success.
    pub async fn remove_files(&self, name: &str) -> Result<(), EngineError> {
        check_name(name)?;
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || Ok(shared.workshop.pool.remove(&name)?)).await
    }

    /// The names of all files there are, those of volumes too.
    pub async fn files(&self) -> Result<Vec<String>, EngineError> {
        let shared = self.0.clone();
        blocking(move || Ok(shared.workshop.pool.list()?)).await
    }

    /// Removes the copies that killed backups have left. The caller makes sure that no backup runs.
    pub async fn remove_frozen_copies(&self) -> Result<(), EngineError> {
        let shared = self.0.clone();
        blocking(move || Ok(shared.workshop.pool.remove_frozen_copies()?)).await
    }

    /// Keeps beside the files `name` what they are, so that a lost record can be written again.
    pub async fn write_note(&self, name: &str, note: Value) -> Result<(), EngineError> {
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || Ok(shared.workshop.pool.write_note(&name, &note)?)).await
    }

    /// What was last written about the files `name`.
    pub async fn note(&self, name: &str) -> Result<Option<Value>, EngineError> {
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || Ok(shared.workshop.pool.note(&name))).await
    }

    /// Whether the files `name` are those of a volume, see [`Engine::create_volume`].
    pub fn is_volume(&self, name: &str) -> bool {
        volume_files(&self.0.workshop.pool.path_of(name)).is_dir()
    }

    /// What sweeps have moved to the trash.
    pub async fn trash(&self) -> Result<Vec<Trashed>, EngineError> {
        let shared = self.0.clone();
        blocking(move || Ok(shared.workshop.pool.trash()?)).await
    }

    /// Brings files back from the trash.
    /// # Errors
    /// [`EngineError::FilesMissing`] when they are not in it.
    pub async fn take_from_trash(&self, name: &str) -> Result<(), EngineError> {
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || Ok(shared.workshop.pool.take_from_trash(&name)?)).await
    }

    /// Deletes files from the trash; absent is success.
    pub async fn delete_from_trash(&self, name: &str) -> Result<(), EngineError> {
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || Ok(shared.workshop.pool.delete_from_trash(&name)?)).await
    }

    /// Gives `to`, which has none, a copy of the files of `from`, which may boot under that name or be copied again. At once on
    /// btrfs, however many there are. What writes to `from` must not run meanwhile: freeze it.
    pub async fn copy_files(&self, from: &str, to: &str) -> Result<(), EngineError> {
        check_name(from)?;
        check_name(to)?;
        let (shared, from, to) = (self.0.clone(), from.to_owned(), to.to_owned());
        blocking(move || shared.workshop.copy(&from, &to)).await
    }

    /// Writes what sandboxes have changed to the disk. Before freezing, it saves [`Engine::copy_files`] that work; after a
    /// pause it makes sure that a power cut takes nothing.
    pub async fn sync_files(&self) -> Result<(), EngineError> {
        let shared = self.0.clone();
        blocking(move || shared.workshop.pool.commit().map_err(EngineError::io("write the pool out"))).await
    }

    /// Makes a volume that sandboxes can have, see [`Boot::volumes`]. [`Engine::remove_files`]
    /// removes it.
    pub async fn create_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || shared.workshop.create_volume(&name, limit_bytes)).await
    }

    /// Opens a volume.
    /// # Errors
    /// [`EngineError::FilesMissing`] when it is not there.
    pub async fn open_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        let (shared, name) = (self.0.clone(), name.to_owned());
        blocking(move || shared.workshop.open_volume(&name, limit_bytes)).await
    }

    /// In how far sandboxes are otherwise than those of a server that is root, for whoever uses them.
    pub fn differences(&self) -> Vec<&'static str> {
        differences(self.0.workshop.standing, self.0.workshop.groups.limits())
    }

    /// Why sandboxes cannot write any more, while that is so. Does no I/O.
    pub fn fault(&self) -> Option<PoolFault> {
        self.0.workshop.pool.fault()
    }

    /// Bytes that all sandboxes together can still write.
    pub fn pool_free_bytes(&self) -> io::Result<u64> {
        self.0.workshop.pool.free_bytes()
    }
}

/// Opens the pool. One that the kernel aborted can be mounted again when nothing holds it: the sandboxes that do are ended,
/// and their files stay.
fn open_pool(config: &EngineConfig, groups: &Groups) -> Result<Pool, EngineError> {
    let open = || Pool::open(&config.data, config.pool_bytes);
    let held = match open() {
        Err(error @ PoolError::Held { .. }) => error,
        other => return Ok(other?),
    };
    let names = groups.list();
    warn!(error = &held as &dyn std::error::Error, sandboxes = names.len(), "ending sandboxes to mount the pool again");
    for name in names {
        if let Err(error) = end_group(groups, &name) {
            // Should it hold the pool, mounting says so.
            warn!(sandbox = name, error = &error as &dyn std::error::Error, "a sandbox could not be ended");
        }
    }
    groups.end_strays();
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match open() {
            // The kernel takes the mounts of a process down after the process has ended.
            Err(PoolError::Held { .. }) if Instant::now() < deadline => thread::sleep(RELEASE_INTERVAL),
            Ok(pool) => {
                warn!("the pool is mounted again; what sandboxes had not synced when it was aborted is lost");
                return Ok(pool);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends a sandbox by its cgroup, whichever server booted it.
fn end_group(groups: &Groups, name: &str) -> Result<(), EngineError> {
    let Some(group) = groups.open_existing(name) else { return Ok(()) };
    let processes = group.children()?.into_iter().filter_map(open_process).collect::<Vec<_>>();
    group.kill_all()?;
    for process in processes {
        // At most one of them is a child of this process, which has to reap it; the others give an
        // error at once.
        let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED);
    }
    group.remove()
}

/// Makes a launcher ready for the next boot, when this one has had the processors for the guest's start and, usually, its
/// first command.
async fn refill_soon(engine: Weak<Shared>) {
    tokio::time::sleep(REFILL_DELAY).await;
    if let Some(shared) = engine.upgrade() {
        drop(tokio::task::spawn_blocking(move || shared.workshop.launchers.refill()));
    }
}

/// Ends when the engine is gone. Logs what changed, not what it finds every second.
async fn guard_space(engine: Weak<Shared>) {
    let (mut trouble, mut fault) = (None, None);
    loop {
        tokio::time::sleep(GUARD_INTERVAL).await;
        let Some(shared) = engine.upgrade() else { return };
        let guarded = blocking(move || {
            let pool = &shared.workshop.pool;
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

/// Ends when the engine is gone. Apart from [`guard_space`], which no slow disk may delay.
async fn write_back(engine: Weak<Shared>) {
    let mut trouble = None;
    loop {
        tokio::time::sleep(WRITE_BACK_INTERVAL).await;
        let Some(shared) = engine.upgrade() else { return };
        let written = blocking(move || Ok(shared.workshop.pool.write_back().map_err(|error| error.to_string()).err()));
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
    fn find(&self, name: String, instance: Instance, egress: Policy) -> Result<Option<Started>, EngineError> {
        let Some(group) = self.workshop.groups.open_existing(&name) else { return Ok(None) };
        let Some(process) = open_process(instance.pid) else { return Ok(None) };
        // Checked after the descriptor is had: from here on it cannot become another's.
        let same = start_time_of(instance.pid).is_ok_and(|start_time| start_time == instance.start_time);
        if !same || !group.holds(instance.pid)? || has_ended(&process) {
            return Ok(None);
        }
        let socket = self.workshop.socket_of(&name);
        let network = Network::connect(instance.pid, &self.egress, egress, &socket)
            .map_err(EngineError::io("connect the sandbox to the network"))?;
        let pool = &self.workshop.pool;
        let Some(Record { limit_bytes, shared_bytes, .. }) = Record::read(&pool.path_of(&name)) else {
            return Ok(None);
        };
        let volume = pool.open_volume(&name, limit_bytes)?;
        volume.set_allowance(shared_bytes).map_err(EngineError::io(format!("limit volume {name}")))?;
        let ids = self.workshop.ranges.adopt(instance.pid);
        let scaffold = Scaffold::adopted(name, group, socket, ids, process);
        Ok(Some(Started { instance, network, volume, scaffold }))
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

impl Workshop {
    /// What cannot be ended or removed is logged and left: one such thing never keeps the server from starting.
    fn sweep(&self, keep_running: &HashSet<String>, keep_files: &HashSet<String>) -> Result<Vec<String>, EngineError> {
        let mut removed = BTreeSet::new();
        for name in self.groups.list() {
            if keep_running.contains(&name) {
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
            let is_named = keep_files.contains(&name) || keep_running.contains(&name);
            if is_named || holds_content(&self.pool.path_of(&name)) {
                continue;
            }
            match self.pool.move_to_trash(&name) {
                Ok(()) => {
                    removed.insert(name);
                }
                // A full disk, for one: the files stay where they are until the next start.
                Err(error) => warn!(name, %error, "files that no record names could not be moved to the trash"),
            }
        }
        Ok(removed.into_iter().collect())
    }

    /// The names of sandboxes whose sockets were removed.
    fn sweep_sockets(&self, keep_running: &HashSet<String>) -> Vec<String> {
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
                && check_name(name).is_ok()
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
