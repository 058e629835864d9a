//! `sandbar restore`: makes a data directory from a backup, once every byte of it was read and
//! found to be what the manifest says. The directory appears under its name as a whole.

use super::manifest::{FileEntry, Manifest, Root, VolumeEntry, hex};
use super::{Target, source};
use crate::{config, data, runtime};
use anyhow::{Context as _, bail};
use clap::Args;
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
use workspace::snapshot::{ObjectKey, Objects};

/// Until the volume is used: then its record's limit applies.
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
    target: Target,
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
            fs::create_dir_all(&parent).map_err(data::refused(&parent))?;
            // Before any thread exists: namespaces belong to the whole process.
            engine::enter_private_mounts(data).context("cannot make namespaces")?;
        }
        runtime::block_on(async {
            let manifest = Manifest::load(&target, self.at.as_deref()).await?;
            let manifest = manifest.with_context(|| format!("there is no backup in {}", self.target.target))?;
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
            // Only what is written out is charged.
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

/// A directory in the making, removed when it is dropped.
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
        fs::create_dir_all(&parent).map_err(data::refused(&parent))?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(data::refused(&path))?;
        Ok(Self { path, place: parent.join(name), published: false })
    }

    /// Gives it its name. An empty directory there makes way.
    fn publish(mut self) -> anyhow::Result<()> {
        sync_tree(&self.path)?;
        match fs::remove_dir(&self.place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{} is not empty", self.place.display()));
            }
            _ => {}
        }
        fs::rename(&self.path, &self.place).map_err(data::refused(&self.place))?;
        self.published = true;
        File::open(parent_of(&self.place)?)?.sync_all().context("cannot sync the parent directory")
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            // The operator sees the name; nothing takes it for a data directory.
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

/// Also when it is absent.
fn is_empty(path: &Path) -> anyhow::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).with_context(|| format!("cannot look into {}", path.display())),
    }
}

/// Every directory's entries; the files are synced one by one.
fn sync_tree(path: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    File::open(path)?.sync_all().with_context(|| format!("cannot sync {}", path.display()))
}

/// Reads every object of the backup.
pub(super) async fn verify(target: &Objects, manifest: &Manifest) -> anyhow::Result<()> {
    for (key, (bytes, sha256)) in manifest.objects() {
        copy(target, key, bytes, sha256, |_| Ok(())).await?;
    }
    Ok(())
}

/// Gives an object piece by piece to `take`, and fails if it is not what the manifest says.
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
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(data::refused(folder))?;
    let mut file = File::options().create_new(true).write(true).open(&path).map_err(data::refused(&path))?;
    copy(target, entry.key(), entry.bytes, &entry.sha256, |piece| file.write_all(piece)).await?;
    file.set_permissions(fs::Permissions::from_mode(entry.mode))?;
    file.sync_all().map_err(data::refused(&path))
}

async fn write_volume(target: &Objects, entry: &VolumeEntry, pool: &Pool) -> anyhow::Result<()> {
    pool.create_volume(&entry.name, VOLUME_LIMIT_BYTES)
        .with_context(|| format!("cannot make volume {}", entry.name))?;
    let mut command = tokio::process::Command::from(source::unpack(&pool.path_of(&entry.name)));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut tar = command.spawn().context("cannot run tar")?;
    let mut input = tar.stdin.take().context("its input is piped")?;
    let complaining = tokio::spawn(source::read_complaints(tar.stderr.take().context("its errors are piped")?));
    let mut pieces = std::pin::pin!(target.read(entry.key(), entry.bytes));
    // Verified before; a store that fails now fails here.
    while let Some(piece) = pieces.next().await {
        // A tar that ended says why below.
        if input.write_all(&piece?).await.is_err() {
            break;
        }
    }
    drop(input);
    let ended = tar.wait().await?;
    if !ended.success() {
        bail!("cannot unpack volume {}: {}", entry.name, complaining.await.unwrap_or_default().trim());
    }
    Ok(())
}
