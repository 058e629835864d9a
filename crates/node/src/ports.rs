//! Ports of the node.
//!
//! `Engine` and `Machine` are the kernel's part: [`crate::LocalEngine`] in production,
//! [`crate::memory::MemoryEngine`] in tests. `Records` is the durable part:
//! [`crate::records::SqliteRecords`] and [`crate::memory::MemoryRecords`].

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress::{Policy, Rules};
use engine::volume::VolumeDirectory;
use engine::{BootFiles, FilesId, NewRoot};
use images::ImageError;
use jiff::Timestamp;
use protocol::SandboxId;
use protocol::guest::GuestConfig;
use tokio::net::TcpStream;

use crate::build::Layer;
use crate::description::Description;
use crate::health::Unwritable;
use crate::sandbox::{Created, IdempotencyKey, Record, Resources};
use crate::secret::Secret;
use crate::template::TemplateRecord;
use crate::volume::{Volume, VolumeMount};

/// Identifies a running machine, so that a later server finds it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    pub pid: u32,
    pub start_time: u64,
}

/// One start of a sandbox. Its files are kept under the sandbox's id across boots.
#[derive(Debug, Clone)]
pub struct Boot {
    pub id: SandboxId,
    /// Whether its files are created or must exist.
    pub files: BootFiles,
    pub resources: Resources,
    /// The egress rules, and where decisions are logged.
    pub egress: Policy,
    /// The volumes it mounts.
    pub volumes: Vec<VolumeMount>,
    pub boot_id: String,
    pub guest: GuestConfig,
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
    /// Processes that the kernel has killed since boot because the machine was out of memory.
    pub oom_kills: u64,
}

/// Why a call of the engine failed.
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
    #[error("{what}")]
    Failed { what: &'static str, source: Box<dyn Error + Send + Sync> },
}

impl EngineError {
    pub fn failed(what: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { what, source: source.into() }
    }
}

/// Writes the files of a root file system into a directory. It may block.
pub type Fill = Box<dyn FnOnce(&NewRoot) -> Result<(), ImageError> + Send>;

/// Why a root file system was not created.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Files in the trash.
#[derive(Debug, Clone, PartialEq)]
pub struct Trashed {
    pub files: FilesId,
    pub since: Timestamp,
    /// How long servers have observed them in the trash, by their monotonic clocks.
    pub watched: Duration,
    /// Their size; `None` if it cannot be determined.
    pub bytes: Option<u64>,
    pub description: Option<Description>,
}

/// The files of the pool by id: their descriptions, and the trash for those that no record names.
#[async_trait]
pub trait Trash: Send + Sync {
    /// All files in the pool, including those of volumes, without the trash.
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError>;
    /// Keeps a description beside `files`, replacing the one before.
    async fn describe(&self, files: &FilesId, description: &Description) -> Result<(), EngineError>;
    /// The description of `files`; `None` also if it cannot be parsed.
    async fn description(&self, files: &FilesId) -> Result<Option<Description>, EngineError>;
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
    /// Starts process 1; the machine's guest can be called at once. Fails with
    /// [`EngineError::FilesMissing`] if the files of the machine or of a volume are absent.
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
    /// the trash, except for volumes with content, which stay. Returns the names of what it killed
    /// or moved.
    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<String>, EngineError>;
    /// Removes files; succeeds if they are absent.
    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError>;
    /// Copies the files of `from`, which no process may be writing to, to `to`, which has none. A
    /// crash leaves either no copy or one that the next sweep removes.
    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError>;
    /// Prepares spare files for the sandboxes `ids` that may be created next, synced to the disk
    /// when this returns: empty ones, or copies of the files of `from`, which no process writes to.
    async fn make_spares(&self, ids: &[SandboxId], from: Option<&FilesId>) -> Result<(), EngineError>;
    /// Whether copies take no time and space, so that spare files can be copies.
    fn copies_are_instant(&self) -> bool;
    /// Makes the spare files of `id` its own; returns whether there were any. A crash of the host
    /// may undo this: [`Engine::settle_spares`] repeats it.
    async fn take_spare(&self, id: &SandboxId) -> Result<bool, EngineError>;
    /// Removes spare files; succeeds if they are absent.
    async fn remove_spare(&self, id: &SandboxId) -> Result<(), EngineError>;
    /// Takes the spare files of the sandboxes in `keep` and removes all others of an earlier
    /// server. Those that a sandbox may have written to before a power cut stay, for
    /// [`Engine::sweep`].
    async fn settle_spares(&self, keep: &HashSet<FilesId>) -> Result<(), EngineError>;
    /// Creates `files` with a root file system of their own, which `fill` fills; returns what it
    /// lacks. If that fails, nothing is left; a crash leaves files that the next sweep removes.
    async fn make_root(&self, files: &FilesId, limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError>;
    /// Syncs the files of all machines to the disk, so that a copy made right after takes no time.
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
    async fn freeze(&self) -> Result<(), EngineError>;
    /// Succeeds if the machine is not frozen.
    async fn thaw(&self) -> Result<(), EngineError>;
    /// Kills every process; the files stay. Succeeds if the machine is dead.
    async fn kill(&self) -> Result<(), EngineError>;
    async fn usage(&self) -> Result<Usage, EngineError>;
    /// Resolves when process 1 has ended. Cancel safe, and can be called again.
    async fn exited(&self);
}

/// The database failed, or contains something that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of sandboxes")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

impl RecordsError {
    /// Why the database cannot be written, if that is the reason.
    pub fn unwritable(&self) -> Option<&Unwritable> {
        database::find_unwritable(self)
    }
}

/// A row of the records that this version cannot parse. The row and the files it names are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub table: &'static str,
    pub id: String,
    pub cause: String,
    pub files: Vec<FilesId>,
}

/// Records of templates, with the same guarantee as [`Records`].
#[async_trait]
pub trait TemplateRecords: Send + Sync {
    async fn templates(&self) -> Result<Vec<TemplateRecord>, RecordsError>;
    /// Writes a complete template, replacing its row.
    async fn put_template(&self, template: &TemplateRecord) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove_template(&self, id: &str) -> Result<(), RecordsError>;
    /// The cached states that builds start from.
    async fn layers(&self) -> Result<Vec<Layer>, RecordsError>;
    /// Writes a state, replacing the row of the same key.
    async fn put_layer(&self, layer: &Layer) -> Result<(), RecordsError>;
    async fn remove_layer(&self, key: &str) -> Result<(), RecordsError>;
}

/// Records of volumes, with the same guarantee as [`Records`].
#[async_trait]
pub trait VolumeRecords: Send + Sync {
    async fn volumes(&self) -> Result<Vec<Volume>, RecordsError>;
    /// Writes a new volume.
    async fn put_volume(&self, volume: &Volume) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove_volume(&self, id: &str) -> Result<(), RecordsError>;
}

/// Records of secrets, with the same guarantee as [`Records`]. Values are stored encrypted.
#[async_trait]
pub trait SecretRecords: Send + Sync {
    async fn secrets(&self) -> Result<Vec<Secret>, RecordsError>;
    /// Writes a complete secret, replacing its row.
    async fn put_secret(&self, secret: &Secret) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove_secret(&self, id: &str) -> Result<(), RecordsError>;
}

/// Records of sandboxes. What a call has acknowledged survives a crash of the machine.
#[async_trait]
pub trait Records: TemplateRecords + VolumeRecords + SecretRecords {
    /// Every sandbox that can be parsed; [`Records::unreadable`] has the rest.
    async fn all(&self) -> Result<Vec<Record>, RecordsError>;
    /// Rows of any table that earlier reads could not parse.
    async fn unreadable(&self) -> Result<Vec<Unreadable>, RecordsError> {
        Ok(Vec::new())
    }
    /// Writes a new sandbox together with its idempotency key, in one transaction.
    async fn insert(&self, record: &Record, idempotency: Option<&IdempotencyKey>) -> Result<(), RecordsError>;
    /// Writes the current record of a sandbox, also of one whose removal failed after it had
    /// removed the row: what this call acknowledges is there after a restart.
    async fn put(&self, record: &Record) -> Result<(), RecordsError>;
    /// Succeeds if it is absent.
    async fn remove(&self, id: &SandboxId) -> Result<(), RecordsError>;
    /// The fingerprint and the answer of an earlier create call with this key, also if its sandbox
    /// has ended.
    async fn creation(&self, key: &str) -> Result<Option<(String, Created)>, RecordsError>;
    /// Removes the keys of create calls before `before`.
    async fn forget_creations(&self, before: Timestamp) -> Result<(), RecordsError>;
    /// Why the records refuse changes, while they do. Reads a state that the records keep current;
    /// does no I/O.
    fn fault(&self) -> Option<Unwritable> {
        None
    }
}
