//! `sandbar backup`, `sandbar restore` and `sandbar scrub`: copies all durable data of a server
//! while it runs, and verifies stored data by its checksums.

mod manifest;
mod restore;
mod scrub;
mod source;
mod timer;

pub(crate) use restore::Restore;
pub(crate) use scrub::Scrub;
pub(crate) use timer::{BackupConfig, ScrubConfig, Timers};

use self::manifest::{FileEntry, Manifest, Root, VolumeEntry, hex};
use self::source::{DurableFile, Fingerprint, FrozenVolume, MAX_PATH_BYTES, OpenPool};
use crate::config::{self, Config, Overrides};
use crate::runtime;
use anyhow::{Context as _, bail};
use checkpoint::{ObjectKey, Objects};
use clap::Args;
use engine::Namespaces;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tracing::warn;
use url::Url;
use workspace::config::ObjectsConfig;

/// Size of one read and one upload.
const PIECE_BYTES: usize = 1 << 20;
/// Attempts to read a file that changes meanwhile.
const READ_TRIES: usize = 3;
/// GNU tar's exit code when files changed while it read them. Every other failure has another.
const TAR_FILES_CHANGED: i32 = 1;
/// A starting server holds the lock for as long as it deletes some subvolumes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Where backups are kept.
#[derive(Args)]
pub(crate) struct BackupTarget {
    /// A directory on another disk, or s3://BUCKET/PREFIX (credentials: AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY)
    #[arg(value_name = "DIR|s3://BUCKET/PREFIX")]
    target: String,
    /// Of an S3 server that is not AWS
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL")]
    endpoint: Option<String>,
}

impl BackupTarget {
    /// Opens the object store. A directory is created if `make` is set, else it must exist.
    fn open(&self, make: bool) -> anyhow::Result<Objects> {
        let url = match self.target.contains("://") {
            true => self.target.clone(),
            false => {
                let path = Path::new(&self.target);
                if !make && !path.is_dir() {
                    bail!("{} is no directory", path.display());
                }
                format!("file://{}", std::path::absolute(path)?.display())
            }
        };
        let config = ObjectsConfig { url: Some(url), endpoint: self.endpoint.clone(), ..ObjectsConfig::default() };
        config.open(&config::variable).with_context(|| format!("{} cannot be used", self.target))
    }
}

/// Back up everything durable of this server, while it runs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar backup /mnt/backup
  sandbar backup s3://BUCKET/sandbar
  sandbar backup /mnt/backup --json       {backup, files, databases, volumes, bytes, copiedBytes,
                                           inconsistentVolumes, notIncluded}
  sandbar restore /mnt/backup --data DIR

A backup has copies of all SQLite databases (sandboxes, studio, workspaces), keys and authorities, \
snapshots of workspaces that are kept on this machine, and the files of all sandboxes, templates and \
volumes; not the memory of paused sandboxes. What has not changed since the last backup in the same \
place is not copied again.

A backup exists when this command succeeds; one that broke off leaves the earlier ones as they are. \
It has keys and tokens in it: keep it as private as the data directory.

By a timer of the server:
  [backup]
  target = \"s3://BUCKET/sandbar\"
  interval_hours = 24")]
pub(crate) struct Backup {
    #[command(flatten)]
    target: BackupTarget,
    /// The data directory [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    backup: String,
    files: usize,
    databases: usize,
    volumes: usize,
    /// Size of the whole backup.
    bytes: u64,
    /// Bytes that the target did not have before.
    copied_bytes: u64,
    /// Volumes whose files changed while they were archived. `sandbar restore` restores them.
    inconsistent_volumes: Vec<String>,
    not_included: Vec<String>,
}

impl Backup {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        crate::logging::start_if_wanted()?;
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        if !config.data.is_dir() {
            bail!("there is no data directory {}; --data names another", config.data.display());
        }
        crate::data::check_owner(&config.data)?;
        let data = config.data.canonicalize()?;
        // Before any thread is started: a thread that exists already would stay outside of the
        // namespaces.
        engine::enter_private_mounts(&data).context("cannot make namespaces")?;
        let _lock = lock(&data)?;
        let report = runtime::block_on(async {
            let work = BackupRun::new(self.target.open(true)?).await?;
            work.run(&config, &data).await
        })?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
            return Ok(());
        }
        println!(
            "backup {}: {} files, {} databases, {} volumes; {} of {} bytes were new",
            report.backup, report.files, report.databases, report.volumes, report.copied_bytes, report.bytes
        );
        for name in &report.inconsistent_volumes {
            println!("inconsistent: files of volume {name} changed while they were read");
        }
        for one in &report.not_included {
            println!("not included: {one}");
        }
        Ok(())
    }
}

/// Locks the data directory against another backup and a starting server: each removes the frozen
/// copies that it finds.
fn lock(data: &Path) -> anyhow::Result<File> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match try_lock(data)? {
            Some(lock) => return Ok(lock),
            // A starting server holds it while it removes the leftovers of a killed backup.
            None if Instant::now() < deadline => std::thread::sleep(LOCK_INTERVAL),
            None => bail!("another backup of {} is under way", data.display()),
        }
    }
}

/// [`None`] while another process holds the lock.
fn try_lock(data: &Path) -> anyhow::Result<Option<File>> {
    let file = File::options().create(true).truncate(false).write(true).open(data.join("backup.lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).context("cannot lock the data directory for a backup"),
    }
}

/// Removes what a killed backup has left in a data directory and its pool, unless a backup runs.
/// Failures are logged. The caller holds the directory's lock, so that no backup starts to read the
/// pool meanwhile.
pub(crate) async fn remove_leftovers(data: &Path, engine: &Namespaces) {
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
    files: HashMap<(Root, String), FileEntry>,
    volumes: HashMap<String, VolumeEntry>,
    /// Descriptions of files that an archive cannot have.
    left_out: Vec<String>,
    report: Report,
}

impl BackupRun {
    async fn new(target: Objects) -> anyhow::Result<Self> {
        let last = Manifest::load(&target, None).await?;
        let (files, volumes) = last.map(|last| (last.files, last.volumes)).unwrap_or_default();
        Ok(Self {
            target,
            files: files.into_iter().map(|file| ((file.root, file.path.clone()), file)).collect(),
            volumes: volumes.into_iter().map(|volume| (volume.name.clone(), volume)).collect(),
            left_out: Vec::new(),
            report: Report::default(),
        })
    }

    async fn run(mut self, config: &Config, data: &Path) -> anyhow::Result<Report> {
        let mut not_included = find_external(config, data)?;
        let pool = OpenPool::open(data)?;
        let drafts = make_drafts(data)?;
        let (mut files, mut copied) = (Vec::new(), HashSet::new());
        for file in find_files(data)?.iter().filter(|file| file.database) {
            files.push(self.copy_database(file, drafts.path()).await?);
            copied.insert((file.root, file.relative.clone()));
        }
        // After the databases are copied: the copied records name only volumes and files that exist
        // by now. An earlier listing would miss a snapshot that was committed in between.
        let volumes = pool.freeze()?;
        for file in find_files(data)? {
            if !file.database {
                files.extend(self.copy_file(&file).await?);
            } else if copied.insert((file.root, file.relative.clone())) {
                files.push(self.copy_database(&file, drafts.path()).await?);
            }
        }
        let (count, mut entries) = (volumes.len(), Vec::new());
        for (index, volume) in volumes.into_iter().enumerate() {
            eprintln!("volume {} of {count}: {}", index + 1, volume.name);
            entries.extend(self.copy_volume(&volume).await?);
        }
        self.report.databases = copied.len();
        self.report.files = files.len() - copied.len();
        self.report.volumes = entries.len();
        not_included.append(&mut self.left_out);
        let manifest = Manifest::new(files, entries, not_included);
        manifest.store(&self.target).await?;
        self.report.bytes = manifest.objects().values().map(|(bytes, _)| bytes).sum();
        self.report.backup = manifest.stamp();
        self.report.inconsistent_volumes = manifest.inconsistent_volumes();
        self.report.not_included = manifest.not_included;
        Ok(self.report)
    }

    async fn copy_database(&mut self, file: &DurableFile, drafts: &Path) -> anyhow::Result<FileEntry> {
        let draft = drafts.join("copy.sqlite");
        database::backup(&file.path, &draft).await?;
        let (sha256, bytes) = digest(&draft).await?;
        let entry = FileEntry { sha256, bytes, ..entry(file) };
        self.send_file(&draft, &entry).await?;
        tokio::fs::remove_file(&draft).await?;
        Ok(entry)
    }

    /// Copies a file; [`None`] if it was removed meanwhile.
    async fn copy_file(&mut self, file: &DurableFile) -> anyhow::Result<Option<FileEntry>> {
        let found = entry(file);
        let last = self.files.get(&(file.root, file.relative.clone()));
        let unchanged = last.filter(|last| (last.bytes, last.modified_ns) == (found.bytes, found.modified_ns));
        if let Some(last) = unchanged.cloned()
            && self.target.size(&last.key()).await? == Some(last.bytes)
        {
            return Ok(Some(FileEntry { mode: found.mode, ..last }));
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let (sha256, bytes) = match digest(&file.path).await {
                Err(_) if !file.path.exists() => return Ok(None),
                digest => digest?,
            };
            let entry = FileEntry { sha256, bytes, ..found.clone() };
            match self.send_file(&file.path, &entry).await {
                Ok(()) => return Ok(Some(entry)),
                Err(_) if !file.path.exists() => return Ok(None),
                Err(error) if tries == READ_TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    async fn send_file(&mut self, path: &Path, entry: &FileEntry) -> anyhow::Result<()> {
        if self.target.size(&entry.key()).await? == Some(entry.bytes) {
            return Ok(());
        }
        let file = tokio::fs::File::open(path).await.with_context(|| format!("cannot read {}", path.display()))?;
        let (sha256, bytes) = self.send(entry.key(), file, Some(&entry.sha256)).await?;
        debug_assert_eq!((sha256.as_str(), bytes), (entry.sha256.as_str(), entry.bytes));
        self.report.copied_bytes += bytes;
        Ok(())
    }

    /// Archives a volume; [`None`] if it was read without a snapshot and deleted meanwhile.
    async fn copy_volume(&mut self, volume: &FrozenVolume) -> anyhow::Result<Option<VolumeEntry>> {
        let Fingerprint { digest: fingerprint, left_out } = match volume.fingerprint() {
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
            return Ok(Some(VolumeEntry { charged_bytes: volume.charged_bytes(), ..last }));
        }
        let mut command = tokio::process::Command::from(volume.archive());
        let mut tar =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
        let tar = tar.as_mut().map_err(|error| anyhow::anyhow!("cannot run tar: {error}"))?;
        let output = tar.stdout.take().context("its output is piped")?;
        let warnings = tokio::spawn(source::read_tar_warnings(tar.stderr.take().context("its errors are piped")?));
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
            bail!("cannot archive volume {}: {}", volume.name, stderr.trim());
        }
        self.report.copied_bytes += bytes;
        let (name, charged_bytes) = (volume.name.clone(), volume.charged_bytes());
        Ok(Some(VolumeEntry { name, fingerprint, bytes, sha256, charged_bytes, inconsistent }))
    }

    /// Uploads `content`, and aborts when its digest is not `expected`. Returns digest and length.
    async fn send(
        &self,
        key: ObjectKey,
        mut content: impl AsyncRead + Unpin,
        expected: Option<&str>,
    ) -> anyhow::Result<(String, u64)> {
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
            bail!("a file changed while it was read");
        }
        upload.finish().await?;
        Ok((sha256, bytes))
    }
}

/// The durable files of the data directory, and of the workspaces where they are not below it.
fn find_files(data: &Path) -> anyhow::Result<Vec<DurableFile>> {
    let mut found = source::files_below(Root::Data, data)?;
    let workspaces = config::workspaces_directory()?;
    if workspaces.is_dir() && !workspaces.canonicalize()?.starts_with(data) {
        found.extend(source::files_below(Root::Workspaces, &workspaces)?);
    }
    Ok(found)
}

/// Creates an empty directory for copies of databases. The caller holds the backup's lock.
fn make_drafts(data: &Path) -> anyhow::Result<TempDir> {
    remove_drafts(data)?;
    let made = tempfile::Builder::new().prefix(source::DRAFTS).rand_bytes(0).tempdir_in(data);
    made.with_context(|| format!("cannot make {}", data.join(source::DRAFTS).display()))
}

/// Removes the drafts of a killed backup. The caller holds the backup's lock.
fn remove_drafts(data: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(data.join(source::DRAFTS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", data.join(source::DRAFTS).display()))
        }
        _ => Ok(()),
    }
}

fn entry(file: &DurableFile) -> FileEntry {
    let metadata = &file.metadata;
    FileEntry {
        root: file.root,
        path: file.relative.clone(),
        mode: metadata.permissions().mode() & 0o7777,
        bytes: metadata.len(),
        modified_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        sha256: String::new(),
        database: file.database,
    }
}

async fn digest(path: &Path) -> anyhow::Result<(String, u64)> {
    let file = tokio::fs::File::open(path).await;
    let mut file = file.with_context(|| format!("cannot read {}", path.display()))?;
    let (mut hasher, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE_BYTES]);
    loop {
        let count = file.read(&mut piece).await.with_context(|| format!("cannot read {}", path.display()))?;
        if count == 0 {
            return Ok((hex(hasher.finalize()), bytes));
        }
        hasher.update(&piece[..count]);
        bytes += count as u64;
    }
}

/// Names records and snapshots that the configuration keeps outside of the copied directories.
fn find_external(config: &Config, data: &Path) -> anyhow::Result<Vec<String>> {
    let workspaces = config.workspaces()?;
    let inside = [data.to_owned(), config::workspaces_directory()?];
    let is_inside = |path: &str| {
        let resolved = Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
        inside.iter().any(|directory| resolved.starts_with(directory) || Path::new(path).starts_with(directory))
    };
    let mut elsewhere = BTreeSet::new();
    let records = workspaces.records.location(&config::variable)?;
    match records.expose().strip_prefix("sqlite://") {
        Some(path) if is_inside(path) => {}
        Some(path) => drop(elsewhere.insert(format!("the records of workspaces in {path}"))),
        None => drop(elsewhere.insert("the records of workspaces in Postgres (`pg_dump` copies them)".to_owned())),
    }
    if let Some(url) = &workspaces.objects.url
        && !url.strip_prefix("file://").is_some_and(is_inside)
    {
        elsewhere.insert(format!("the snapshots of workspaces in {url}"));
    }
    for database in crate::data::known_databases(data) {
        match database.expose().strip_prefix("sqlite://") {
            Some(path) if is_inside(path) => {}
            Some(path) => drop(elsewhere.insert(format!("the records of the studio in {path}"))),
            None => {
                let place = without_password(database.expose());
                elsewhere.insert(format!("the records of the studio in {place} (`pg_dump` copies them)"));
            }
        }
    }
    Ok(elsewhere.into_iter().collect())
}

/// A Postgres URL without password and parameters, which can have passwords too.
fn without_password(url: &str) -> String {
    let shown = Url::parse(url).ok().and_then(|mut url| {
        url.set_password(None).ok()?;
        url.set_query(None);
        url.set_fragment(None);
        Some(url.to_string())
    });
    shown.unwrap_or_else(|| "Postgres".to_owned())
}
