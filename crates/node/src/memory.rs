//! Engine and records in memory, for tests: machines are a listening socket and a task, records are
//! a map.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use egress::{Policy, Rules};
use engine::volume::VolumeDirectory;
use engine::{
    Boot, BootFiles, Engine, EngineCapabilities, EngineError, FilesId, Fill, Instance, IsolationClass, Machine,
    NewRoot, RootError, Trash, Trashed, Usage,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use protocol::SandboxId;
use protocol::guest::GuestConfig;
use serde_json::Value;
use tokio::net::{TcpStream, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::build::Layer;
use crate::id::new_files_id;
use crate::ports::{Records, RecordsError, SecretRecords, TemplateRecords, VolumeRecords};
use crate::sandbox::{Created, IdempotencyKey, Record};
use crate::secret::Secret;
use crate::template::TemplateRecord;
use crate::volume::Volume;

/// Plays the guest: called at each boot with its listener; must end when the token is cancelled.
pub type GuestActor = dyn Fn(UnixListener, GuestConfig, CancellationToken) + Send + Sync;

/// The error that calls fail with, while they do.
type Refusal = Option<fn() -> EngineError>;

/// An engine whose machines are tasks. It outlives the node that uses it, as real machines do.
pub struct MemoryEngine {
    directory: PathBuf,
    guest: Box<GuestActor>,
    inner: Mutex<Inner>,
    next_pid: AtomicU32,
}

#[derive(Default)]
struct Inner {
    machines: HashMap<SandboxId, Arc<MemoryMachine>>,
    files: HashSet<FilesId>,
    volumes: HashSet<FilesId>,
    notes: HashMap<FilesId, Value>,
    trash: HashMap<FilesId, Trashed>,
    copies: Vec<(FilesId, FilesId)>,
    spares: HashSet<SandboxId>,
    boots: Vec<Boot>,
    ports: Arc<Mutex<HashMap<u16, SocketAddr>>>,
    freezing: Arc<tokio::sync::Mutex<()>>,
    refusing: Refusal,
    refusing_freezes: Arc<Mutex<Refusal>>,
}

/// What the guest of `boot` reads.
pub fn guest_config(boot: &Boot) -> serde_json::Result<GuestConfig> {
    serde_json::from_slice(&boot.guest_config)
}

impl MemoryEngine {
    /// Creates an engine whose sockets are in `directory`; `guest` answers on them.
    pub fn new(
        directory: &Path,
        guest: impl Fn(UnixListener, GuestConfig, CancellationToken) + Send + Sync + 'static,
    ) -> Self {
        Self {
            directory: directory.to_owned(),
            guest: Box::new(guest),
            inner: Mutex::default(),
            next_pid: AtomicU32::new(100),
        }
    }

    /// Connects `port` of every machine to `address`.
    pub fn open_port(&self, port: u16, address: SocketAddr) {
        self.inner.lock().ports.lock().insert(port, address);
    }

    /// Makes every boot fail with this error, or succeed again.
    pub fn refuse_boots(&self, error: Refusal) {
        self.inner.lock().refusing = error;
    }

    /// Makes every freeze fail with this error, or succeed again.
    pub fn refuse_freezes(&self, error: Refusal) {
        *self.inner.lock().refusing_freezes.lock() = error;
    }

    /// All boots so far, oldest first.
    pub fn boots(&self) -> Vec<Boot> {
        self.inner.lock().boots.clone()
    }

    /// All files in the pool.
    pub fn files(&self) -> HashSet<FilesId> {
        self.inner.lock().files.clone()
    }

    /// Removes files as a disk failure does.
    pub fn lose_files(&self, files: &FilesId) {
        self.inner.lock().files.remove(files);
    }

    fn missing(&self, files: &FilesId) -> EngineError {
        EngineError::FilesMissing { files: files.clone(), path: self.directory.join(files.as_str()) }
    }

    fn check_files(&self, boot: &Boot) -> Result<(), EngineError> {
        let (inner, own) = (self.inner.lock(), FilesId::from(&boot.id));
        let mut wanted = boot.volumes.iter().map(|mount| &mount.files).collect::<Vec<_>>();
        match (boot.files, inner.files.contains(&own)) {
            (BootFiles::Create, true) => return Err(EngineError::failed("cannot boot", "there are files already")),
            (BootFiles::Create, false) => {}
            (BootFiles::Open, _) => wanted.push(&own),
        }
        match wanted.into_iter().find(|files| !inner.files.contains(*files)) {
            Some(missing) => Err(self.missing(missing)),
            None => Ok(()),
        }
    }

    /// All copies so far, as source and target, oldest first.
    pub fn copies(&self) -> Vec<(FilesId, FilesId)> {
        self.inner.lock().copies.clone()
    }

    /// Creates files that no record names, as a server leaves them that dies right after it made
    /// them.
    pub fn strand_files(&self) -> FilesId {
        let files = new_files_id();
        self.inner.lock().files.insert(files.clone());
        files
    }

    /// Machines whose process 1 is alive.
    pub fn running(&self) -> HashSet<SandboxId> {
        let inner = self.inner.lock();
        inner.machines.iter().filter(|(_, machine)| machine.is_alive()).map(|(id, _)| id.clone()).collect()
    }

    /// Blocks every freeze until the guard is dropped.
    pub async fn hold_freezes(&self) -> tokio::sync::OwnedMutexGuard<()> {
        let freezing = Arc::clone(&self.inner.lock().freezing);
        freezing.lock_owned().await
    }

    pub fn is_frozen(&self, id: &SandboxId) -> bool {
        self.inner.lock().machines.get(id).is_some_and(|machine| *machine.frozen.lock())
    }

    /// The current egress rules of a machine.
    pub fn egress_of(&self, id: &SandboxId) -> Option<Rules> {
        self.inner.lock().machines.get(id).map(|machine| machine.egress.lock().clone())
    }

    /// Simulates that the kernel kills `count` processes of a machine because it is out of memory.
    pub fn run_out_of_memory(&self, id: &SandboxId, count: u64) {
        if let Some(machine) = self.inner.lock().machines.get(id) {
            machine.oom_kills.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Ends process 1 without a request.
    pub fn crash(&self, id: &SandboxId) {
        if let Some(machine) = self.inner.lock().machines.get(id) {
            machine.end();
        }
    }
}

#[async_trait]
impl Trash for MemoryEngine {
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError> {
        Ok(Self::files(self))
    }

    async fn write_note(&self, files: &FilesId, note: Value) -> Result<(), EngineError> {
        self.inner.lock().notes.insert(files.clone(), note);
        Ok(())
    }

    async fn note(&self, files: &FilesId) -> Result<Option<Value>, EngineError> {
        Ok(self.inner.lock().notes.get(files).cloned())
    }

    async fn is_volume(&self, files: &FilesId) -> Result<bool, EngineError> {
        Ok(self.inner.lock().volumes.contains(files))
    }

    async fn trash(&self) -> Result<Vec<Trashed>, EngineError> {
        Ok(self.inner.lock().trash.values().cloned().collect())
    }

    async fn take_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        let mut inner = self.inner.lock();
        let Some(Trashed { note, .. }) = inner.trash.remove(files) else { return Err(self.missing(files)) };
        inner.files.insert(files.clone());
        inner.notes.extend(note.map(|note| (files.clone(), note)));
        Ok(())
    }

    async fn record_watched(&self, files: &FilesId, watched: Duration) -> Result<(), EngineError> {
        let mut inner = self.inner.lock();
        inner.trash.get_mut(files).ok_or_else(|| self.missing(files))?.watched = watched;
        Ok(())
    }

    async fn delete_from_trash(&self, files: &FilesId) -> Result<(), EngineError> {
        self.inner.lock().trash.remove(files);
        Ok(())
    }
}

#[async_trait]
impl Engine for MemoryEngine {
    fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            isolation: IsolationClass::Namespaces,
            memory_snapshots: false,
            live_fork: false,
            instant_copies: true,
        }
    }

    async fn environment(&self, _id: &SandboxId) -> Result<BTreeMap<String, String>, EngineError> {
        Ok(BTreeMap::new())
    }

    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>, EngineError> {
        if let Some(error) = self.inner.lock().refusing {
            return Err(error());
        }
        self.check_files(&boot)?;
        let pid = self.next_pid.fetch_add(1, Ordering::Relaxed);
        let socket = self.directory.join(format!("{pid}.sock"));
        let listener = UnixListener::bind(&socket).map_err(|error| EngineError::failed("cannot bind", error))?;
        let mut inner = self.inner.lock();
        let machine = Arc::new(MemoryMachine {
            instance: Instance { pid, start_time: u64::from(pid) * 7 },
            socket,
            ports: Arc::clone(&inner.ports),
            freezing: Arc::clone(&inner.freezing),
            refusing_freezes: Arc::clone(&inner.refusing_freezes),
            frozen: Mutex::new(false),
            oom_kills: AtomicU64::new(0),
            egress: Mutex::new(boot.egress.rules.clone()),
            ended: CancellationToken::new(),
        });
        let guest =
            guest_config(&boot).map_err(|error| EngineError::failed("cannot read the guest's config", error))?;
        (self.guest)(listener, guest, machine.ended.clone());
        inner.files.insert(FilesId::from(&boot.id));
        inner.machines.insert(boot.id.clone(), Arc::clone(&machine));
        inner.boots.push(boot);
        Ok(machine)
    }

    async fn adopt(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<Arc<dyn Machine>>, EngineError> {
        let found = self.inner.lock().machines.get(id).cloned();
        let same = found.filter(|machine| machine.is_alive() && machine.instance == instance);
        if let Some(machine) = &same {
            machine.set_egress_rules(egress.rules);
        }
        Ok(same.map(|machine| machine as Arc<dyn Machine>))
    }

    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<FilesId>, EngineError> {
        let mut inner = self.inner.lock();
        inner.machines.retain(|id, machine| {
            let stays = running.contains(id);
            if !stays {
                machine.end();
            }
            stays
        });
        let Inner { files: held, volumes, notes, trash, .. } = &mut *inner;
        let unnamed: Vec<FilesId> =
            held.iter().filter(|id| !files.contains(*id) && !volumes.contains(*id)).cloned().collect();
        for id in &unnamed {
            held.remove(id);
            let note = notes.remove(id);
            let trashed =
                Trashed { files: id.clone(), since: SystemTime::now(), watched: Duration::ZERO, bytes: Some(0), note };
            trash.insert(id.clone(), trashed);
        }
        Ok(unnamed)
    }

    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError> {
        let mut inner = self.inner.lock();
        inner.files.remove(files);
        inner.volumes.remove(files);
        inner.notes.remove(files);
        Ok(())
    }

    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError> {
        let mut inner = self.inner.lock();
        if !inner.files.contains(from) {
            return Err(self.missing(from));
        }
        if !inner.files.insert(to.clone()) {
            return Err(EngineError::failed("cannot copy files", format!("from {from} to {to}")));
        }
        inner.copies.push((from.clone(), to.clone()));
        Ok(())
    }

    async fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), EngineError> {
        let mut inner = self.inner.lock();
        match from.filter(|from| !inner.files.contains(*from)) {
            Some(missing) => Err(self.missing(missing)),
            None => {
                inner.spares.extend(ids.iter().cloned());
                Ok(())
            }
        }
    }

    async fn take_spare(&self, id: &SandboxId) -> Result<bool, EngineError> {
        let mut inner = self.inner.lock();
        let taken = inner.spares.remove(id);
        if taken {
            inner.files.insert(FilesId::from(id));
        }
        Ok(taken)
    }

    async fn remove_spare(&self, id: &SandboxId) -> Result<(), EngineError> {
        self.inner.lock().spares.remove(id);
        Ok(())
    }

    async fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), EngineError> {
        let mut inner = self.inner.lock();
        let spares = std::mem::take(&mut inner.spares);
        inner.files.extend(spares.iter().map(FilesId::from).filter(|files| keep.contains(files)));
        Ok(())
    }

    async fn egress_certificate(&self) -> Result<String, EngineError> {
        Ok("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_owned())
    }

    async fn make_root(&self, files: &FilesId, _limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError> {
        let root = self.directory.join(files.as_str());
        std::fs::create_dir(&root).map_err(|error| EngineError::failed("cannot make a root", error))?;
        fill(&NewRoot { path: root, first_id: None, cgroup: Vec::new() }).map_err(RootError::Fill)?;
        self.inner.lock().files.insert(files.clone());
        Ok(Vec::new())
    }

    async fn create_volume(&self, files: &FilesId, _limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        let mut inner = self.inner.lock();
        inner.files.insert(files.clone());
        inner.volumes.insert(files.clone());
        let directory = self.directory.join(files.as_str());
        std::fs::create_dir(&directory)
            .and_then(|()| VolumeDirectory::create(&directory))
            .map_err(|error| EngineError::failed("cannot make a volume", error))
    }

    async fn open_volume(&self, files: &FilesId, _limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        if !self.inner.lock().files.contains(files) {
            return Err(self.missing(files));
        }
        let opened = VolumeDirectory::open(&self.directory.join(files.as_str()));
        opened.map_err(|error| EngineError::failed("cannot open a volume", error))?.ok_or_else(|| self.missing(files))
    }

    async fn sync_files(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

struct MemoryMachine {
    instance: Instance,
    socket: PathBuf,
    ports: Arc<Mutex<HashMap<u16, SocketAddr>>>,
    freezing: Arc<tokio::sync::Mutex<()>>,
    refusing_freezes: Arc<Mutex<Refusal>>,
    frozen: Mutex<bool>,
    oom_kills: AtomicU64,
    egress: Mutex<Rules>,
    ended: CancellationToken,
}

impl MemoryMachine {
    fn is_alive(&self) -> bool {
        !self.ended.is_cancelled()
    }

    fn end(&self) {
        self.ended.cancel();
        // Ignored: the socket is absent if the machine ended before.
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[async_trait]
impl Machine for MemoryMachine {
    fn instance(&self) -> Instance {
        self.instance
    }

    fn guest_socket(&self) -> &Path {
        &self.socket
    }

    async fn dial(&self, port: u16) -> io::Result<TcpStream> {
        let address = self.ports.lock().get(&port).copied();
        match address {
            Some(address) => TcpStream::connect(address).await,
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    fn set_egress_rules(&self, rules: Rules) {
        *self.egress.lock() = rules;
    }

    async fn freeze(&self) -> Result<(), EngineError> {
        let _allowed = self.freezing.lock().await;
        if let Some(error) = *self.refusing_freezes.lock() {
            return Err(error());
        }
        *self.frozen.lock() = true;
        Ok(())
    }

    async fn thaw(&self) -> Result<(), EngineError> {
        if !self.is_alive() {
            return Err(EngineError::failed("cannot thaw", "process 1 is gone"));
        }
        *self.frozen.lock() = false;
        Ok(())
    }

    async fn kill(&self) -> Result<(), EngineError> {
        self.end();
        Ok(())
    }

    async fn usage(&self) -> Result<Usage, EngineError> {
        Ok(Usage {
            cpu_usec: 1000,
            memory_used: 1 << 20,
            memory_cache: 1 << 10,
            memory_limit: 1 << 30,
            disk_used: 1 << 12,
            disk_limit: 1 << 33,
            pids: 1,
            oom_kills: self.oom_kills.load(Ordering::Relaxed),
        })
    }

    async fn exited(&self) {
        self.ended.cancelled().await;
    }
}

/// Records that last as long as the value.
#[derive(Default)]
pub struct MemoryRecords {
    sandboxes: Mutex<HashMap<SandboxId, Record>>,
    creations: Mutex<HashMap<String, (String, Created, Timestamp)>>,
    templates: Mutex<HashMap<String, TemplateRecord>>,
    layers: Mutex<HashMap<String, Layer>>,
    volumes: Mutex<HashMap<String, Volume>>,
    secrets: Mutex<HashMap<String, Secret>>,
}

#[async_trait]
impl SecretRecords for MemoryRecords {
    async fn secrets(&self) -> Result<Vec<Secret>, RecordsError> {
        Ok(self.secrets.lock().values().cloned().collect())
    }

    async fn put_secret(&self, secret: &Secret) -> Result<(), RecordsError> {
        self.secrets.lock().insert(secret.id.clone(), secret.clone());
        Ok(())
    }

    async fn remove_secret(&self, id: &str) -> Result<(), RecordsError> {
        self.secrets.lock().remove(id);
        Ok(())
    }
}

#[async_trait]
impl VolumeRecords for MemoryRecords {
    async fn volumes(&self) -> Result<Vec<Volume>, RecordsError> {
        Ok(self.volumes.lock().values().cloned().collect())
    }

    async fn put_volume(&self, volume: &Volume) -> Result<(), RecordsError> {
        self.volumes.lock().insert(volume.id.clone(), volume.clone());
        Ok(())
    }

    async fn remove_volume(&self, id: &str) -> Result<(), RecordsError> {
        self.volumes.lock().remove(id);
        Ok(())
    }
}

#[async_trait]
impl TemplateRecords for MemoryRecords {
    async fn templates(&self) -> Result<Vec<TemplateRecord>, RecordsError> {
        Ok(self.templates.lock().values().cloned().collect())
    }

    async fn put_template(&self, template: &TemplateRecord) -> Result<(), RecordsError> {
        self.templates.lock().insert(template.id.clone(), template.clone());
        Ok(())
    }

    async fn remove_template(&self, id: &str) -> Result<(), RecordsError> {
        self.templates.lock().remove(id);
        Ok(())
    }

    async fn layers(&self) -> Result<Vec<Layer>, RecordsError> {
        Ok(self.layers.lock().values().cloned().collect())
    }

    async fn put_layer(&self, layer: &Layer) -> Result<(), RecordsError> {
        self.layers.lock().insert(layer.key.clone(), layer.clone());
        Ok(())
    }

    async fn remove_layer(&self, key: &str) -> Result<(), RecordsError> {
        self.layers.lock().remove(key);
        Ok(())
    }
}

#[async_trait]
impl Records for MemoryRecords {
    async fn all(&self) -> Result<Vec<Record>, RecordsError> {
        Ok(self.sandboxes.lock().values().cloned().collect())
    }

    async fn insert(&self, record: &Record, idempotency: Option<&IdempotencyKey>) -> Result<(), RecordsError> {
        let twice = |what: &str| RecordsError { what: "write", source: format!("{what} is there already").into() };
        let (mut sandboxes, mut creations) = (self.sandboxes.lock(), self.creations.lock());
        if sandboxes.contains_key(&record.id) {
            return Err(twice("the sandbox"));
        }
        if let Some(IdempotencyKey { key, fingerprint }) = idempotency {
            if creations.contains_key(key) {
                return Err(twice("the key"));
            }
            creations.insert(key.clone(), (fingerprint.clone(), record.into(), record.started_at));
        }
        sandboxes.insert(record.id.clone(), record.clone());
        Ok(())
    }

    async fn put(&self, record: &Record) -> Result<(), RecordsError> {
        self.sandboxes.lock().insert(record.id.clone(), record.clone());
        Ok(())
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), RecordsError> {
        self.sandboxes.lock().remove(id);
        Ok(())
    }

    async fn creation(&self, key: &str) -> Result<Option<(String, Created)>, RecordsError> {
        Ok(self.creations.lock().get(key).map(|(print, created, _)| (print.clone(), created.clone())))
    }

    async fn forget_creations(&self, before: Timestamp) -> Result<(), RecordsError> {
        self.creations.lock().retain(|_, (_, _, at)| *at >= before);
        Ok(())
    }
}
