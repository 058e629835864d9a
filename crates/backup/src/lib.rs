//! Backups of everything durable of a server, while it runs; their restore; and the check of stored
//! data by its checksums.
//!
//! A backup is a manifest in an object store, written last, and objects that backups share: files
//! of the data directory, copies of its SQLite databases, and an archive per volume of the pool.
//! What has not changed since the last backup is not copied again. A restore verifies all of it
//! before it writes, under a temporary name. The caller has entered a mount namespace of its own
//! ([`engine::enter_private_mounts`]), in which the pool is opened.

mod error;
mod manifest;
mod restore;
mod scrub;
mod source;

pub use error::BackupError;
pub use manifest::{BackupContents, BackupManifest};
pub use restore::{check_ids, prepare, restore, verify};
pub use scrub::{FoundFlaw, ScrubReport, scrub, scrub_checkpoints};

use crate::error::{During as _, Result, refused};
use crate::manifest::{BackedUpFile, BackedUpVolume, SourceRoot, hex};
use crate::source::{DurableFile, FrozenVolume, MAX_PATH_BYTES, OpenPool, VolumeFingerprint};
use checkpoint::{ObjectKey, Objects};
use engine::Namespaces;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tracing::warn;

/// Size of one read and one upload.
const PIECE_BYTES: usize = 1 << 20;
/// Attempts to read a file that changes meanwhile.
const READ_TRIES: usize = 3;
/// GNU tar's exit code when files changed while it read them. Every other failure has another.
const TAR_FILES_CHANGED: i32 = 1;
/// A starting server holds the lock for as long as it deletes some subvolumes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// What a backup has, and what it cost.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupReport {
    pub backup: String,
    pub files: usize,
    pub databases: usize,
    pub volumes: usize,
    /// Size of the whole backup.
    pub bytes: u64,
    /// Bytes that the target did not have before.
    pub copied_bytes: u64,
    /// Volumes whose files changed while they were archived. `sandbar restore` restores them.
    pub inconsistent_volumes: Vec<String>,
    pub not_included: Vec<String>,
}

/// The directories whose files a backup has.
#[derive(Debug)]
pub struct Sources {
    /// The data directory.
    pub data: PathBuf,
    /// The records and checkpoints of workspaces, which may be below the data directory.
    pub workspaces: PathBuf,
}

/// Makes a backup. The caller holds [`lock`]. `not_included` describes durable data elsewhere;
/// `progress` gets a line per volume.
///
/// # Errors
/// [`BackupError`]; the earlier backups stay as they are.
pub async fn back_up(
    sources: &Sources,
    target: Objects,
    not_included: Vec<String>,
    progress: impl Fn(String),
) -> Result<BackupReport> {
    BackupRun::new(target).await?.run(sources, not_included, progress).await
}

/// Locks the data directory against another backup and a starting server: each removes the frozen
/// copies that it finds.
pub fn lock(data: &Path) -> Result<File> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match try_lock(data)? {
            Some(lock) => return Ok(lock),
            // A starting server holds it while it removes the leftovers of a killed backup.
            None if Instant::now() < deadline => std::thread::sleep(LOCK_INTERVAL),
            None => return refused(format!("another backup of {} is under way", data.display())),
        }
    }
}

/// [`None`] while another process holds the lock.
fn try_lock(data: &Path) -> Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(data.join("backup.lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).during(|| "cannot lock the data directory for a backup".to_owned()),
    }
}

/// Removes what a killed backup has left in a data directory and its pool, unless a backup runs.
/// Failures are logged. The caller holds the directory's lock, so that no backup starts to read the
/// pool meanwhile.
pub async fn remove_leftovers(data: &Path, engine: &Namespaces) {
    let lock = match try_lock(data) {
        Ok(Some(lock)) => lock,
        Ok(None) => return,
        Err(error) => return warn!(error = format!("{error:#}"), "what a killed backup left stays"),
    };
    if let Err(error) = remove_drafts(data) {
        warn!(error = format!("{error:#}"), "what a killed backup left stays");
    }
    if let Err(error) = engine.remove_frozen_copies().await {
        warn!(error = &error as &dyn std::error::Error, "what a killed backup left in the pool stays");
    }
    drop(lock);
}

/// A backup while it is made.
struct BackupRun {
    target: Objects,
    /// Entries of the last backup, by which unchanged files are found.
    files: HashMap<(SourceRoot, String), BackedUpFile>,
    volumes: HashMap<String, BackedUpVolume>,
    /// Descriptions of files that an archive cannot have.
    left_out: Vec<String>,
    report: BackupReport,
}

impl BackupRun {
    async fn new(target: Objects) -> Result<Self> {
        let last = BackupManifest::load(&target, None).await?;
        let (files, volumes) = last.map(|last| (last.files, last.volumes)).unwrap_or_default();
        Ok(Self {
            target,
            files: files.into_iter().map(|file| ((file.root, file.path.clone()), file)).collect(),
            volumes: volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect(),
            left_out: Vec::new(),
            report: BackupReport::default(),
        })
    }

    async fn run(
        mut self,
        sources: &Sources,
        mut not_included: Vec<String>,
        progress: impl Fn(String),
    ) -> Result<BackupReport> {
        let pool = OpenPool::open(&sources.data)?;
        let drafts = make_drafts(&sources.data)?;
        let (mut files, mut copied) = (Vec::new(), HashSet::new());
        for file in sources.files()?.iter().filter(|file| file.database) {
            files.push(self.copy_database(file, drafts.path()).await?);
            copied.insert((file.root, file.relative.clone()));
        }
        // After the databases are copied: the copied records name only volumes and files that exist
        // by now. An earlier listing would miss a snapshot that was committed in between.
        let volumes = pool.freeze()?;
        for file in sources.files()? {
            if !file.database {
                files.extend(self.copy_file(&file).await?);
            } else if copied.insert((file.root, file.relative.clone())) {
                files.push(self.copy_database(&file, drafts.path()).await?);
            }
        }
        let (count, mut entries) = (volumes.len(), Vec::new());
        for (index, volume) in volumes.into_iter().enumerate() {
            progress(format!("volume {} of {count}: {}", index + 1, volume.name));
            entries.extend(self.copy_volume(&volume).await?);
        }
        self.report.databases = copied.len();
        self.report.files = files.len() - copied.len();
        self.report.volumes = entries.len();
        not_included.append(&mut self.left_out);
        let manifest = BackupManifest::new(files, entries, not_included);
        manifest.store(&self.target).await?;
        self.report.bytes = manifest.objects().values().map(|(bytes, _)| bytes).sum();
        self.report.backup = manifest.stamp();
        self.report.inconsistent_volumes = manifest.inconsistent_volumes();
        self.report.not_included = manifest.not_included;
        Ok(self.report)
    }

    async fn copy_database(&mut self, file: &DurableFile, drafts: &Path) -> Result<BackedUpFile> {
        let draft = drafts.join("copy.sqlite");
        database::backup(&file.path, &draft).await?;
        let (sha256, bytes) = digest(&draft).await?;
        let entry = BackedUpFile { sha256, bytes, ..entry(file) };
        self.send_file(&draft, &entry).await?;
        tokio::fs::remove_file(&draft).await?;
        Ok(entry)
    }

    /// Copies a file; [`None`] if it was removed meanwhile.
    async fn copy_file(&mut self, file: &DurableFile) -> Result<Option<BackedUpFile>> {
        let found = entry(file);
        let last = self.files.get(&(file.root, file.relative.clone()));
        let unchanged = last.filter(|last| (last.bytes, last.modified_ns) == (found.bytes, found.modified_ns));
        if let Some(last) = unchanged.cloned()
            && self.target.size(&last.key()).await? == Some(last.bytes)
        {
            return Ok(Some(BackedUpFile { mode: found.mode, ..last }));
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let (sha256, bytes) = match digest(&file.path).await {
                Err(_) if !file.path.exists() => return Ok(None),
                digest => digest?,
            };
            let entry = BackedUpFile { sha256, bytes, ..found.clone() };
            match self.send_file(&file.path, &entry).await {
                Ok(()) => return Ok(Some(entry)),
                Err(_) if !file.path.exists() => return Ok(None),
                Err(error) if tries == READ_TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    async fn send_file(&mut self, path: &Path, entry: &BackedUpFile) -> Result<()> {
        if self.target.size(&entry.key()).await? == Some(entry.bytes) {
            return Ok(());
        }
        let file = tokio::fs::File::open(path).await.during(|| format!("cannot read {}", path.display()))?;
        let (sha256, bytes) = self.send(entry.key(), file, Some(&entry.sha256)).await?;
        debug_assert_eq!((sha256.as_str(), bytes), (entry.sha256.as_str(), entry.bytes));
        self.report.copied_bytes += bytes;
        Ok(())
    }

    /// Archives a volume; [`None`] if it was read without a snapshot and deleted meanwhile.
    async fn copy_volume(&mut self, volume: &FrozenVolume) -> Result<Option<BackedUpVolume>> {
        let VolumeFingerprint { digest: fingerprint, left_out } = match volume.fingerprint() {
            Err(_) if volume.was_deleted() => return Ok(None),
            fingerprint => fingerprint?,
        };
        if left_out {
            let what = format!("files of volume {} with paths of {MAX_PATH_BYTES} bytes or more", volume.name);
            self.left_out.push(what);
        }
        let last = self.volumes.get(&volume.name).filter(|last| last.fingerprint == fingerprint);
        if let Some(last) = last.cloned()
            && self.target.size(&last.key()).await? == Some(last.bytes)
        {
            return Ok(Some(BackedUpVolume { charged_bytes: volume.charged_bytes(), ..last }));
        }
        let mut command = tokio::process::Command::from(volume.archive());
        let mut tar =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
        let tar = tar.as_mut().map_err(|error| BackupError::Refused(format!("cannot run tar: {error}")))?;
        let output = tar.stdout.take().expect("its output is piped");
        let warnings = tokio::spawn(source::read_tar_warnings(tar.stderr.take().expect("its errors are piped")));
        let key = manifest::volume_key(&volume.name, &fingerprint);
        let (sha256, bytes) = self.send(key.clone(), output, None).await?;
        let ended = tar.wait().await?;
        let inconsistent = volume.is_live() && ended.code() == Some(TAR_FILES_CHANGED);
        if !ended.success() && !inconsistent {
            let stderr = warnings.await.unwrap_or_default();
            self.target.delete(&key).await?;
            if volume.was_deleted() {
                return Ok(None);
            }
            return refused(format!("cannot archive volume {}: {}", volume.name, stderr.trim()));
        }
        self.report.copied_bytes += bytes;
        let (name, charged_bytes) = (volume.name.clone(), volume.charged_bytes());
        Ok(Some(BackedUpVolume { name, fingerprint, bytes, sha256, charged_bytes, inconsistent }))
    }

    /// Uploads `content`, and aborts when its digest is not `expected`. Returns digest and length.
    async fn send(
        &self,
        key: ObjectKey,
        mut content: impl AsyncRead + Unpin,
        expected: Option<&str>,
    ) -> Result<(String, u64)> {
        // An interrupted backup may have left an object with other bytes under this key.
        self.target.delete(&key).await?;
        let mut upload = self.target.upload(key);
        let (mut hasher, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
        loop {
            let count = content.read(&mut piece).await?;
            if count == 0 {
                break;
            }
            hasher.update(&piece[..count]);
            bytes += count as u64;
            upload.push(&piece[..count]).await?;
        }
        let sha256 = hex(hasher.finalize());
        if expected.is_some_and(|expected| expected != sha256) {
            upload.abort().await;
            return refused("a file changed while it was read");
        }
        upload.finish().await?;
        Ok((sha256, bytes))
    }
}

impl Sources {
    /// The directories, each once.
    fn roots(&self) -> Result<Vec<(SourceRoot, &Path)>> {
        let mut roots = vec![(SourceRoot::Data, self.data.as_path())];
        if self.workspaces.is_dir() && !self.workspaces.canonicalize()?.starts_with(&self.data) {
            roots.push((SourceRoot::Workspaces, &self.workspaces));
        }
        Ok(roots)
    }

    fn files(&self) -> Result<Vec<DurableFile>> {
        let mut found = Vec::new();
        for (root, directory) in self.roots()? {
            found.extend(source::files_below(root, directory)?);
        }
        Ok(found)
    }
}

/// Creates an empty directory for copies of databases. The caller holds the backup's lock.
fn make_drafts(data: &Path) -> Result<TempDir> {
    remove_drafts(data)?;
    let made = tempfile::Builder::new().prefix(source::DRAFTS).rand_bytes(0).tempdir_in(data);
    made.during(|| format!("cannot make {}", data.join(source::DRAFTS).display()))
}

/// Removes the drafts of a killed backup. The caller holds the backup's lock.
fn remove_drafts(data: &Path) -> Result<()> {
    match fs::remove_dir_all(data.join(source::DRAFTS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).during(|| format!("cannot remove {}", data.join(source::DRAFTS).display()))
        }
        _ => Ok(()),
    }
}

fn entry(file: &DurableFile) -> BackedUpFile {
    let metadata = &file.metadata;
    BackedUpFile {
        root: file.root,
        path: file.relative.clone(),
        mode: metadata.permissions().mode() & 0o7777,
        bytes: metadata.len(),
        modified_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        sha256: String::new(),
        database: file.database,
    }
}

async fn digest(path: &Path) -> Result<(String, u64)> {
    let file = tokio::fs::File::open(path).await;
    let mut file = file.during(|| format!("cannot read {}", path.display()))?;
    let (mut hasher, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
    loop {
        let count = file.read(&mut piece).await.during(|| format!("cannot read {}", path.display()))?;
        if count == 0 {
            return Ok((hex(hasher.finalize()), bytes));
        }
        hasher.update(&piece[..count]);
        bytes += count as u64;
    }
}
