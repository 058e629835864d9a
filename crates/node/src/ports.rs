//! What the life cycle needs from the outside world, in its own words.
//!
//! `Engine` and `Machine` are the kernel's part: [`crate::LocalEngine`] in earnest, [`crate::memory::MemoryEngine`] in
//! tests. `Records` is the durable part: [`crate::records::SqliteRecords`], [`crate::memory::MemoryRecords`].

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use engine::net::{Policy, Rules};
use engine::volume::VolumeDirectory;
use engine::{BootFiles, NewRoot};
use images::ImageError;
use jiff::Timestamp;
use protocol::guest::GuestConfig;
use tokio::net::TcpStream;

use crate::build::Layer;
use crate::description::Description;
use crate::health::Unwritable;
use crate::id::{FilesId, SandboxId};
use crate::sandbox::{Created, Record, Repeatable, Resources};
use crate::secret::Secret;
use crate::template::TemplateRecord;
use crate::volume::{Volume, VolumeMount};

/// Enough to find a running machine again, and to know that it is the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    pub pid: u32,
    pub start_time: u64,
}

/// One start of a sandbox. Files are kept under the sandbox's ID across boots.
#[derive(Debug, Clone)]
pub struct Boot {
    pub id: SandboxId,
    /// Whether its files are made or must be there.
    pub files: BootFiles,
    pub resources: Resources,
    /// What the sandbox may reach, and who hears of it.
    pub egress: Policy,
    /// What volumes it has.
    pub volumes: Vec<VolumeMount>,
    pub boot_id: String,
    pub guest: GuestConfig,
}

/// What a machine uses now; sizes in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time since boot, in microseconds.
    pub cpu_usec: u64,
    pub memory_used: u64,
    pub memory_cache: u64,
    pub memory_limit: u64,
    pub disk_used: u64,
    pub disk_limit: u64,
    /// Processes the kernel has killed since boot because the machine was out of memory.
    pub oom_kills: u64,
}

/// Why the kernel's part failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Free disk space, then try again.
    #[error("no space left for sandboxes on this machine")]
    NoSpace,
    /// Files that were to be opened or copied are not there. Opening never makes them.
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

/// Fills a directory with the files of a root. It may block.
pub type Fill = Box<dyn FnOnce(&NewRoot) -> Result<(), ImageError> + Send>;

/// Why there is no root.
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
    /// What they take; none where that cannot be counted.
    pub bytes: Option<u64>,
    pub description: Option<Description>,
}

/// The files of the pool by their names: what describes them, and the trash for those that no
/// record names.
#[async_trait]
pub trait Trash: Send + Sync {
    /// All files that are kept, those of volumes too, without the trash.
    async fn files(&self) -> Result<HashSet<FilesId>, EngineError>;
    /// Keeps beside `files` what they are, in the place of what was said before.
    async fn describe(&self, files: &FilesId, description: &Description) -> Result<(), EngineError>;
    /// What was last said of `files`; none also when that cannot be read.
    async fn description(&self, files: &FilesId) -> Result<Option<Description>, EngineError>;
    /// Whether `files`, outside the trash, are a volume.
    async fn is_volume(&self, files: &FilesId) -> Result<bool, EngineError>;
    async fn trash(&self) -> Result<Vec<Trashed>, EngineError>;
    /// Takes files out of the trash. [`EngineError::FilesMissing`] when they are not in it.
    async fn take_from_trash(&self, files: &FilesId) -> Result<(), EngineError>;
    /// Deletes files in the trash; absent is success.
    async fn delete_from_trash(&self, files: &FilesId) -> Result<(), EngineError>;
}

/// Makes machines and keeps their files.
#[async_trait]
pub trait Engine: Trash {
    /// Starts process 1; the machine's guest can be called at once. [`EngineError::FilesMissing`]
    /// when files are not there that should be, the machine's own or those of a volume.
    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>, EngineError>;
    /// Finds a machine that an earlier server booted; `None` when it is not alive. A frozen one stays frozen.
    async fn adopt(
        &self,
        id: &SandboxId,
        instance: Instance,
        egress: Policy,
    ) -> Result<Option<Arc<dyn Machine>>, EngineError>;
    /// Ends every machine not in `running` and moves all files not in `files` to the trash, but for
    /// volumes with content, which stay. Returns what it ended or moved.
    async fn sweep(&self, running: &HashSet<SandboxId>, files: &HashSet<FilesId>) -> Result<Vec<String>, EngineError>;
    /// Removing what is already absent succeeds.
    async fn remove_files(&self, files: &FilesId) -> Result<(), EngineError>;
    /// Gives `to`, which has no files, a copy of those of `from`, which nobody may be writing to. A crash leaves either no
    /// copy or one that the next sweep removes.
    async fn copy_files(&self, from: &FilesId, to: &FilesId) -> Result<(), EngineError>;
    /// Makes `files` with a root of their own, which `fill` fills; says what that root lacks. When it fails nothing is left; a crash leaves
    /// what the next sweep removes.
    async fn make_root(&self, files: &FilesId, limit_bytes: u64, fill: Fill) -> Result<Vec<String>, RootError>;
    /// Writes out what machines have changed, so that a copy made soon after takes no time.
    async fn sync_files(&self) -> Result<(), EngineError>;
    /// What sandboxes must trust so that rules can set headers of their TLS requests: a certificate as PEM.
    async fn egress_certificate(&self) -> Result<String, EngineError>;
    /// In how far its machines fall short of what users may expect: said in every sandbox's log.
    fn shortcomings(&self) -> Vec<&'static str> {
        Vec::new()
    }
    /// Makes a volume of at most `limit_bytes`. It is removed like any files.
    async fn create_volume(&self, files: &FilesId, limit_bytes: u64) -> Result<VolumeDirectory, EngineError>;
    /// Opens a volume. [`EngineError::FilesMissing`] when it is not there.
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
    /// Where the guest answers HTTP; not visible inside.
    fn guest_socket(&self) -> &Path;
    /// Connects to a port inside; refused when nothing listens there.
    async fn dial(&self, port: u16) -> io::Result<TcpStream>;
    /// Other rules for what it may reach, from now on; connections that they do not allow are cut.
    fn set_egress_rules(&self, rules: Rules);
    async fn freeze(&self) -> Result<(), EngineError>;
    /// Thawing what is not frozen succeeds.
    async fn thaw(&self) -> Result<(), EngineError>;
    /// Ends every process; the files stay. Killing what is dead succeeds.
    async fn kill(&self) -> Result<(), EngineError>;
    async fn usage(&self) -> Result<Usage, EngineError>;
    /// Resolves when process 1 is gone. May be called again and dropped half way.
    async fn exited(&self);
}

/// The database failed, or holds something that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of sandboxes")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

impl RecordsError {
    /// Why nothing can be written, if that is the reason.
    pub fn unwritable(&self) -> Option<&Unwritable> {
        database::unwritable(self)
    }
}

/// A row of the records that this version cannot read. The row and the files it names stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub table: &'static str,
    pub id: String,
    pub cause: String,
    pub files: Vec<FilesId>,
}

/// Where templates are remembered, with the same promise as [`Records`].
#[async_trait]
pub trait TemplateRecords: Send + Sync {
    async fn templates(&self) -> Result<Vec<TemplateRecord>, RecordsError>;
    /// Stores a template whole, in the place of what was known of it.
    async fn put_template(&self, template: &TemplateRecord) -> Result<(), RecordsError>;
    /// Forgetting what is already forgotten succeeds.
    async fn remove_template(&self, id: &str) -> Result<(), RecordsError>;
    /// What builds can begin with.
    async fn layers(&self) -> Result<Vec<Layer>, RecordsError>;
    /// Stores a state, in the place of an earlier one of the same key.
    async fn put_layer(&self, layer: &Layer) -> Result<(), RecordsError>;
    async fn remove_layer(&self, key: &str) -> Result<(), RecordsError>;
}

/// Where volumes are remembered, with the same promise as [`Records`].
#[async_trait]
pub trait VolumeRecords: Send + Sync {
    async fn volumes(&self) -> Result<Vec<Volume>, RecordsError>;
    /// Stores a new volume.
    async fn put_volume(&self, volume: &Volume) -> Result<(), RecordsError>;
    /// Forgetting what is already forgotten succeeds.
    async fn remove_volume(&self, id: &str) -> Result<(), RecordsError>;
}

/// Where secrets are remembered, with the same promise as [`Records`]. Values are not readable where they are kept.
#[async_trait]
pub trait SecretRecords: Send + Sync {
    async fn secrets(&self) -> Result<Vec<Secret>, RecordsError>;
    /// Stores a secret whole, in the place of what was known of it.
    async fn put_secret(&self, secret: &Secret) -> Result<(), RecordsError>;
    /// Forgetting what is already forgotten succeeds.
    async fn remove_secret(&self, id: &str) -> Result<(), RecordsError>;
}

/// Where sandboxes are remembered. What a call has acknowledged survives a crash of the machine.
#[async_trait]
pub trait Records: TemplateRecords + VolumeRecords + SecretRecords {
    /// Every sandbox that can be read; [`Records::unreadable`] has the rest.
    async fn all(&self) -> Result<Vec<Record>, RecordsError>;
    /// What earlier reads of any table found and could not read.
    async fn unreadable(&self) -> Result<Vec<Unreadable>, RecordsError> {
        Ok(Vec::new())
    }
    /// Stores a new sandbox together with the create that may be repeated.
    async fn insert(&self, record: &Record, repeatable: Option<&Repeatable>) -> Result<(), RecordsError>;
    /// Stores what may change in a known sandbox; one that is unknown stays unknown.
    async fn update(&self, record: &Record) -> Result<(), RecordsError>;
    /// Forgetting what is already forgotten succeeds.
    async fn remove(&self, id: &SandboxId) -> Result<(), RecordsError>;
    /// The fingerprint and the answer of an earlier create with this key, also when its sandbox is gone.
    async fn creation(&self, key: &str) -> Result<Option<(String, Created)>, RecordsError>;
    /// Forgets the keys of creates before `moment`.
    async fn forget_creations(&self, before: Timestamp) -> Result<(), RecordsError>;
    /// Why the records refuse changes, while they do. Reads a state that the records keep current;
    /// does no I/O.
    fn fault(&self) -> Option<Unwritable> {
        None
    }
}
