//! `sandbar restore`: creates a data directory from a backup. Every object is read and compared
//! with the manifest first; the finished directory gets its name by an atomic rename.

use super::manifest::{FileEntry, Manifest, Root, VolumeEntry, hex};
use super::{BackupTarget, source};
use crate::{config, data, runtime};
use anyhow::{Context as _, bail};
use checkpoint::{ObjectKey, Objects};
use clap::Args;
use engine::FileIds;
use engine::pool::Pool;
use futures::StreamExt as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;

/// Limit of a restored volume until it is used; then the limit of its record applies.
const VOLUME_LIMIT_BYTES: u64 = 256 << 30;

/// Make a data directory from a backup; nothing is written before all of it was verified.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar restore /mnt/backup --data /var/lib/sandbar
  sandbar restore s3://BUCKET/sandbar --data DIR --at 20261118T051500Z
  sandbar restore /mnt/backup --list             the backups there are, oldest first
  sandbar restore /mnt/backup --verify           reads all of the newest, writes nothing

Then `sandbar up --data DIR` serves what was there: volumes, templates, sandboxes (without their \
processes), workspaces, the studio with its jobs. The directory must be absent or empty.")]
pub(crate) struct Restore {
    #[command(flatten)]
    target: BackupTarget,
    /// The data directory to be made
    #[arg(long, value_name = "DIR", required_unless_present_any = ["list", "verify"])]
    data: Option<PathBuf>,
    /// Where records and snapshots of workspaces go, if they were not below the data directory
    /// [default: $XDG_DATA_HOME/sandbar/workspaces]
    #[arg(long, value_name = "DIR")]
    workspaces: Option<PathBuf>,
    /// Which backup [default: the newest]
    #[arg(long, value_name = "STAMP")]
    at: Option<String>,
    /// Name the backups there are
    #[arg(long, conflicts_with_all = ["data", "at", "verify"])]
    list: bool,
    /// Read and check the backup only
    #[arg(long, conflicts_with = "data")]
    verify: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    backup: String,
    files: usize,
    volumes: usize,
    bytes: u64,
    data: Option<&'a Path>,
    inconsistent_volumes: Vec<String>,
    not_included: &'a [String],
}

impl Restore {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        crate::logging::start_if_wanted()?;
        let target = self.target.open(false)?;
        if self.list {
            return runtime::block_on(self.print_list(&target));
        }
        if let Some(data) = &self.data {
            check_empty(data)?;
            let parent = parent_of(data)?;
            fs::create_dir_all(&parent).map_err(data::write_error(&parent))?;
            // Before any thread is started: a thread that exists already would stay outside of the
            // namespaces.
            engine::enter_private_mounts(data).context("cannot make namespaces")?;
        }
        runtime::block_on(async {
            let manifest = Manifest::load(&target, self.at.as_deref()).await?;
            let manifest = manifest.with_context(|| format!("there is no backup in {}", self.target.target))?;
            if self.data.is_some() {
                check_ids(&manifest)?;
            }
            verify(&target, &manifest).await?;
            if let Some(data) = &self.data {
                self.write(&target, &manifest, data).await?;
            }
            self.print(&manifest)
        })
    }

    async fn print_list(&self, target: &Objects) -> anyhow::Result<()> {
        let stamps: Vec<String> = Manifest::list(target).await?.into_iter().map(|(stamp, _)| stamp).collect();
        if self.json {
            println!("{}", serde_json::to_string(&stamps)?);
        } else {
            stamps.iter().for_each(|stamp| println!("{stamp}"));
        }
        Ok(())
    }

    fn print(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let report = Report {
            backup: manifest.stamp(),
            files: manifest.files.len(),
            volumes: manifest.volumes.len(),
            bytes: manifest.objects().values().map(|(bytes, _)| bytes).sum(),
            data: self.data.as_deref(),
            inconsistent_volumes: manifest.inconsistent_volumes(),
            not_included: &manifest.not_included,
        };
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
            return Ok(());
        }
        let Report { backup, files, volumes, bytes, .. } = &report;
        match &self.data {
            Some(data) => println!(
                "restored backup {backup} ({files} files, {volumes} volumes); `sandbar up --data {}` serves it",
                data.display()
            ),
            None => println!("backup {backup} is whole: {files} files, {volumes} volumes, {bytes} bytes"),
        }
        for name in &report.inconsistent_volumes {
            println!("inconsistent: files of volume {name} changed while they were backed up");
        }
        for one in &manifest.not_included {
            println!("not in the backup: {one}");
        }
        Ok(())
    }

    async fn write(&self, target: &Objects, manifest: &Manifest, data: &Path) -> anyhow::Result<()> {
        let staged = Staged::new(data)?;
        let elsewhere = match manifest.files.iter().any(|file| file.root == Root::Workspaces) {
            true => {
                let place = self.workspaces.clone().map_or_else(config::workspaces_directory, Ok)?;
                check_unused(&place)?;
                Some(Staged::new(&place)?)
            }
            false => None,
        };
        for file in &manifest.files {
            let root = match file.root {
                Root::Data => &staged,
                Root::Workspaces => elsewhere.as_ref().context("it was made for such a file")?,
            };
            write_file(target, file, &root.path).await?;
        }
        if !manifest.volumes.is_empty() {
            let pool = Pool::open(&staged.path, data::pool_bytes(&staged.path)?).context("cannot make the pool")?;
            for (index, volume) in manifest.volumes.iter().enumerate() {
                eprintln!("volume {} of {}: {}", index + 1, manifest.volumes.len(), volume.name);
                write_volume(target, volume, &pool).await?;
            }
            // The file system charges a volume only for committed data.
            pool.commit().context("cannot write the pool out")?;
            for volume in &manifest.volumes {
                engine::allow_for_restored(&pool, &volume.name, volume.charged_bytes)
                    .with_context(|| format!("cannot limit volume {}", volume.name))?;
            }
            pool.commit().context("cannot write the pool out")?;
        }
        for file in manifest.files.iter().filter(|file| file.database) {
            let root = if file.root == Root::Data { Some(&staged) } else { elsewhere.as_ref() };
            database::verify(&root.context("its directory")?.path.join(&file.path)).await?;
        }
        data::mark(&staged.path)?;
        if let Some(elsewhere) = elsewhere {
            elsewhere.publish()?;
        }
        staged.publish()
    }
}

/// A directory under a temporary name. Dropping it removes the directory unless it was published.
struct Staged {
    path: PathBuf,
    place: PathBuf,
    published: bool,
}

impl Staged {
    fn new(place: &Path) -> anyhow::Result<Self> {
        let parent = parent_of(place)?;
        let name = place.file_name().context("the data directory has no name")?.to_string_lossy().into_owned();
        let path = parent.join(format!(".{name}.restore-{}", std::process::id()));
        fs::create_dir_all(&parent).map_err(data::write_error(&parent))?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(data::write_error(&path))?;
        Ok(Self { path, place: parent.join(name), published: false })
    }

    /// Syncs the directory and renames it to its place. An empty directory there is removed first.
    fn publish(mut self) -> anyhow::Result<()> {
        sync_tree(&self.path)?;
        match fs::remove_dir(&self.place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{} is not empty", self.place.display()));
            }
            _ => {}
        }
        fs::rename(&self.path, &self.place).map_err(data::write_error(&self.place))?;
        self.published = true;
        File::open(parent_of(&self.place)?)?.sync_all().context("cannot sync the parent directory")
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            // A directory that stays has a name that says so; no command uses it as a data
            // directory.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn parent_of(path: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    Ok(path.parent().with_context(|| format!("{} cannot be restored to", path.display()))?.to_owned())
}

fn check_empty(path: &Path) -> anyhow::Result<()> {
    if !is_empty(path)? {
        bail!("{} is not empty; restore into a directory that is absent or empty", path.display());
    }
    Ok(())
}

fn check_unused(workspaces: &Path) -> anyhow::Result<()> {
    if !is_empty(workspaces)? {
        bail!(
            "{} has records of workspaces already; name an absent or empty directory for those of the backup by \
             --workspaces DIR (programs look into $XDG_DATA_HOME/sandbar/workspaces)",
            workspaces.display()
        );
    }
    Ok(())
}

/// Whether a directory is absent or has no entries.
fn is_empty(path: &Path) -> anyhow::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot look into {}", path.display())),
    }
}

/// Refuses a backup whose numeric owners mean other users to this process.
fn check_ids(manifest: &Manifest) -> anyhow::Result<()> {
    let here = FileIds::of_this_process();
    let (made_by, fix) = match (manifest.ids, here) {
        // A server with subordinate ids serves files of a single id as they are.
        (None, _) | (Some(FileIds::Single), FileIds::Subordinate) => return Ok(()),
        (Some(ids), here) if ids == here => return Ok(()),
        (Some(FileIds::Root), _) => ("root", "run this command as root"),
        (Some(FileIds::Subordinate), _) => (
            "an ordinary user with subordinate ids",
            "run this command as such a user (`sandbar doctor` says how one gets subordinate ids)",
        ),
        (Some(FileIds::Single), _) => ("an ordinary user", "run this command as the user who will run the server"),
    };
    if manifest.volumes.is_empty() {
        return Ok(());
    }
    bail!("the backup was made by the server of {made_by}: the owners of its files mean nothing here; {fix}")
}

/// Syncs the entries of every directory; files are synced when they are written. Volumes are left
/// out: the pool commits them, and untrusted code decides how deep they are.
fn sync_tree(root: &Path) -> anyhow::Result<()> {
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.path() != engine::pool::volumes_in(root) {
                left.push(entry.path());
            }
        }
        File::open(&folder)?.sync_all().with_context(|| format!("cannot sync {}", folder.display()))?;
    }
    Ok(())
}

/// Reads every object of the backup and compares it with the manifest.
pub(super) async fn verify(target: &Objects, manifest: &Manifest) -> anyhow::Result<()> {
    for (key, (bytes, sha256)) in manifest.objects() {
        copy(target, key, bytes, sha256, |_| Ok(())).await?;
    }
    Ok(())
}

/// Passes an object in pieces to `take`. Fails when size or digest differ from the manifest's.
async fn copy(
    target: &Objects,
    key: ObjectKey,
    bytes: u64,
    sha256: &str,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> anyhow::Result<()> {
    let found = target.size(&key).await?;
    if found != Some(bytes) {
        bail!("the backup is damaged: {key} has {} bytes, not {bytes}", found.unwrap_or(0));
    }
    let mut hasher = Sha256::new();
    let mut pieces = std::pin::pin!(target.read(key.clone(), bytes));
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        hasher.update(&piece);
        take(&piece)?;
    }
    if hex(hasher.finalize()) != sha256 {
        bail!("the backup is damaged: {key} is not what was stored");
    }
    Ok(())
}

async fn write_file(target: &Objects, entry: &FileEntry, root: &Path) -> anyhow::Result<()> {
    let relative = Path::new(&entry.path);
    let plain = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if !relative.components().all(plain) {
        bail!("the backup is damaged: {} leads out of the data directory", entry.path);
    }
    let path = root.join(relative);
    let folder = path.parent().context("it is below its root")?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(data::write_error(folder))?;
    let mut file = File::options().create_new(true).write(true).open(&path).map_err(data::write_error(&path))?;
    copy(target, entry.key(), entry.bytes, &entry.sha256, |piece| file.write_all(piece)).await?;
    file.set_permissions(fs::Permissions::from_mode(entry.mode))?;
    file.sync_all().map_err(data::write_error(&path))
}

async fn write_volume(target: &Objects, entry: &VolumeEntry, pool: &Pool) -> anyhow::Result<()> {
    pool.create_volume(&entry.name, VOLUME_LIMIT_BYTES)
        .with_context(|| format!("cannot make volume {}", entry.name))?;
    let mut command = tokio::process::Command::from(source::unpack(&pool.path_of(&entry.name)));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut tar = command.spawn().context("cannot run tar")?;
    let mut input = tar.stdin.take().context("its input is piped")?;
    let warnings = tokio::spawn(source::read_tar_warnings(tar.stderr.take().context("its errors are piped")?));
    let mut pieces = std::pin::pin!(target.read(entry.key(), entry.bytes));
    // The content was verified before; only a failure of the store can end this early.
    while let Some(piece) = pieces.next().await {
        // tar has exited; its status and stderr are read below.
        if input.write_all(&piece?).await.is_err() {
            break;
        }
    }
    drop(input);
    let ended = tar.wait().await?;
    if !ended.success() {
        bail!("cannot unpack volume {}: {}", entry.name, warnings.await.unwrap_or_default().trim());
    }
    Ok(())
}
