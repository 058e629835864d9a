//! What an engine promises: machines that boot, freeze and end, and files that outlive them.
//!
//! An engine is a module that implements [`Engine`] and [`Machine`]; [`crate::Namespaces`] is one.
//! What one engine can do and another cannot is data, its [`EngineCapabilities`]: callers ask for
//! those, never for the name of an engine.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use durable::Unwritable;
use egress::{Policy, Rules};
use protocol::SandboxId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::files_id::FilesId;
use crate::root::NewRoot;
use crate::volume::VolumeDirectory;

/// What separates the sandboxes of an engine from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationClass {
    /// Namespaces, cgroups and system call filters of the host's kernel.
    Namespaces,
}

impl IsolationClass {
    /// Its name in configuration, requests and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
        }
    }
}

/// What an engine can do, beyond what all of them can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineCapabilities {
    pub isolation: IsolationClass,
    /// Whether the memory of a machine can be saved to the disk and restored after its processes
    /// ended.
    pub memory_snapshots: bool,
    /// Whether a running machine can be copied with its processes.
    pub live_fork: bool,
    /// Whether copies of files take no time and space, so that spare files can be copies.
    pub instant_copies: bool,
}

/// Resource limits of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub cpu_count: u32,
    pub memory_mb: u32,
    pub disk_mb: u32,
    pub pids: u32,
}

/// Where the files of a boot come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootFiles {
    /// No files exist under that id, and the engine creates empty ones: the first boot of a sandbox
    /// of the base.
    Create,
    /// The files exist, from an earlier boot or a copy. Missing ones fail the boot.
    Open,
}

/// A volume that a sandbox mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub files: FilesId,
    /// An absolute path in the sandbox, created if it does not exist.
    pub at: PathBuf,
}

/// The parameters of one start of a sandbox.
#[derive(Debug, Clone)]
pub struct Boot {
    /// Its files are kept under the same id across boots.
    pub id: SandboxId,
    pub files: BootFiles,
    pub resources: Resources,
    /// What the sandbox may connect to, and where decisions are logged.
    pub egress: Policy,
    /// Other sandboxes may mount the same ones.
    pub volumes: Vec<Mount>,
    /// Content of `/proc/sys/kernel/random/boot_id` in the sandbox.
    pub boot_id: String,
    pub hostname: String,
    /// Passed to the guest; the engine does not read it. It should have the variables of
    /// [`Engine::environment`].
    pub guest_config: Vec<u8>,
}

/// Identifies a running machine, so that a later server finds it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Process 1 of the sandbox, by its pid on the host.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot (field 22 of `/proc/PID/stat`); that of
    /// a reused pid differs.
    pub start_time: u64,
}

/// Current resource usage of a machine; sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since boot, in microseconds.
    pub cpu_usec: u64,
    pub memory_used: u64,
    pub memory_cache: u64,
    pub memory_limit: u64,
    pub disk_used: u64,
    pub disk_limit: u64,
    pub pids: u64,
    /// Processes that the kernel has killed since boot because the machine was out of memory.
    pub oom_kills: u64,
}

/// Why a call of an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The operator frees disk space or inodes, then the caller retries. Says where and what to do.
    #[error("no space left for sandboxes on this machine: {0}")]
    NoSpace(String),
    /// Files to open or copy do not exist. Opening never creates them.
    #[error("files {files} are missing from the pool at {}", path.display())]
    FilesMissing { files: FilesId, path: PathBuf },
    /// The pool's file system refuses changes; [`Engine::fault`] reports the same.
    #[error(transparent)]
    ReadOnly(#[from] Unwritable),
    /// The cause is for the operator.
    #[error("{what}")]
    Failed { what: &'static str, source: Box<dyn Error + Send + Sync> },
}

impl EngineError {
    pub fn failed(what: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { what, source: source.into() }
    }
}

/// Writes the files of a root file system into a directory. It may block.
pub type Fill = Box<dyn FnOnce(&NewRoot) -> Result<(), Box<dyn Error + Send + Sync>> + Send>;

/// Why a root file system was not created.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The error of [`Fill`].
    #[error(transparent)]
    Fill(Box<dyn Error + Send + Sync>),
}

/// Files in the trash.
#[derive(Debug, Clone, PartialEq)]
pub struct Trashed {
    pub files: FilesId,
    pub since: SystemTime,
    /// How long servers have observed them in the trash, by their monotonic clocks.
    pub watched: Duration,
    /// Their size; `None` if it cannot be determined.
    pub bytes: Option<u64>,
    /// What was last written about them by [`Trash::write_note`].
    pub note: Option<Value>,
}

/// The files of the pool by id: notes about them, and the trash for those that no record names.
#[async_trait]
pub trait Trash: Send + Sync {
    /// All files in the pool, including those of volumes, without the trash.
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError>;
    /// Keeps a note beside `files`, from which a lost record can be written again. Replaces the one
    /// before.
    async fn write_note(&self, files: &FilesId, note: Value) -> Result<(), EngineError>;
    /// The note of `files`; `None` also if it cannot be read.
    async fn note(&self, files: &FilesId) -> Result<Option<Value>, EngineError>;
    /// Whether `files`, outside of the trash, are a volume.
    async fn is_volume(&self, files: &FilesId) -> Result<bool, EngineError>;
    async fn trash(&self) -> Result<Vec<Trashed>, EngineError>;
    /// Moves files out of the trash. Fails with [`EngineError::FilesMissing`] if they are not in
    /// it.
    async fn take_from_trash(&self, files: &FilesId) -> Result<(), EngineError>;
    /// Records durably how long servers have observed files in the trash. Fails with
    /// [`EngineError::FilesMissing`] if they are not in it.
    async fn record_watched(&self, files: &FilesId, watched: Duration) -> Result<(), EngineError>;
    /// Deletes files in the trash; succeeds if they are absent.
    async fn delete_from_trash(&self, files: &FilesId) -> Result<(), EngineError>;
}

/// Boots machines and keeps their files.
#[async_trait]
pub trait Engine: Trash {
    /// What it can do. Does no I/O, and does not change while a server runs.
    fn capabilities(&self) -> EngineCapabilities;
    /// Variables that processes of the sandbox `id` should have because of its root file system,
    /// unless the caller sets them.
    async fn environment(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, EngineError>;
    /// Starts process 1; the machine's guest can be called at once. When it fails, or its future is
    /// dropped, nothing is left but files.
    ///
    /// Fails with [`EngineError::FilesMissing`] if the files of the machine or of a volume are
    /// absent.
    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>, EngineError>;
    /// Finds a machine that an earlier server booted; `None` if it is not alive. A frozen machine
    /// stays frozen.
    async fn adopt(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<Arc<dyn Machine>>, EngineError>;
    /// Kills every machine that is not in `running` and moves all files that are not in `files` to
    /// the trash, except for volumes with content, which stay. Returns what it killed or moved.
    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<FilesId>, EngineError>;
    /// Removes files; succeeds if they are absent.
    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError>;
    /// Copies the files of `from`, which no process may be writing to, to `to`, which has none. A
    /// crash leaves either no copy or one that the next sweep removes.
    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError>;
    /// Prepares spare files for the sandboxes `ids` that may be created next, synced to the disk
    /// when this returns: empty ones, or copies of the files of `from`, which no process writes to.
    async fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), EngineError>;
    /// Makes the spare files of `id` its own; returns whether there were any. A crash of the host
    /// may undo this: [`Engine::settle_spares`] repeats it.
    async fn take_spare(&self, id: &SandboxId) -> Result<bool, EngineError>;
    /// Names the sandboxes that are probably created next, from their spare files, instead of those
    /// named before. An engine may prepare their boots. Returns at once.
    fn expect(&self, _next: &[SandboxId]) {}
    /// Removes spare files; succeeds if they are absent.
    async fn remove_spare(&self, id: &SandboxId) -> Result<(), EngineError>;
    /// Takes the spare files of the sandboxes in `keep` and removes all others of an earlier
    /// server. Those that a sandbox may have written to before a power cut stay, for
    /// [`Engine::sweep`].
    async fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), EngineError>;
    /// Creates `files` with a root file system of their own, which `fill` fills; returns what it
    /// lacks. If that fails, nothing is left; a crash leaves files that the next sweep removes.
    async fn make_root(&self, files: &FilesId, limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError>;
    /// Syncs the files of all machines to the disk, so that a copy made right after takes no time,
    /// and a power cut loses none of them.
    async fn sync_files(&self) -> Result<(), EngineError>;
    /// The certificate, as PEM, that sandboxes must trust so that rules can set headers of their
    /// TLS requests.
    async fn egress_certificate(&self) -> Result<String, EngineError>;
    /// Ways in which machines of a rootless server differ; written to every sandbox's log.
    fn rootless_limitations(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// Creates a volume of at most `limit_bytes`. It is removed like any files.
    async fn create_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError>;
    /// Opens a volume. Fails with [`EngineError::FilesMissing`] if it is absent.
    async fn open_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError>;
    /// Why the pool refuses changes, while it does. Reads a state that the engine keeps current;
    /// does no I/O.
    fn fault(&self) -> Option<Unwritable> {
        None
    }
}

/// One booted sandbox. Dropping the handle leaves it running.
#[async_trait]
pub trait Machine: Send + Sync {
    fn instance(&self) -> Instance;
    /// The socket on which the guest serves HTTP; not visible inside of the sandbox.
    fn guest_socket(&self) -> &Path;
    /// Counts a call of an authenticated client, for engines that prefer sandboxes with calls on a
    /// busy machine.
    fn record_call(&self) {}
    /// Connects to a port of the sandbox; refused if nothing listens there.
    async fn dial(&self, port: u16) -> io::Result<TcpStream>;
    /// Replaces the egress rules; closes connections that they do not allow.
    fn set_egress_rules(&self, rules: Rules);
    /// Stops every process. Succeeds if the machine is frozen.
    async fn freeze(&self) -> Result<(), EngineError>;
    /// Succeeds if the machine is not frozen.
    async fn thaw(&self) -> Result<(), EngineError>;
    /// Kills every process; the files stay. Succeeds if the machine is dead.
    async fn kill(&self) -> Result<(), EngineError>;
    async fn usage(&self) -> Result<Usage, EngineError>;
    /// Resolves when process 1 has ended. Cancel safe, and can be called again.
    async fn exited(&self);
}
