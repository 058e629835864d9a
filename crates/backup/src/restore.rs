//! Makes a data directory from a backup. Every object is read and compared
//! with the manifest first; the finished directory gets its name by an atomic rename.

use crate::error::{BackupError, During as _, Result, damaged, refused};
use crate::manifest::{BackedUpFile, BackedUpVolume, BackupManifest, SourceRoot, hex};
use crate::source;
use checkpoint::{ObjectKey, Objects};
use engine::FileIds;
use engine::pool::Pool;
use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;

/// Limit of a restored volume until it is used; then the limit of its record applies.
const VOLUME_LIMIT_BYTES: u64 = 256 << 30;

/// Checks that a backup can be restored to `data`, and makes the directory above it.
///
/// # Errors
/// [`BackupError`](crate::BackupError) if it is not empty or cannot be written.
pub fn prepare(data: &Path) -> Result<()> {
    check_empty(data)?;
    let parent = parent_of(data)?;
    Ok(fs::create_dir_all(&parent).map_err(data_directory::write_error(&parent))?)
}

/// Makes a data directory from a backup that was verified. Records and checkpoints of workspaces
/// that were not below the old data directory go to `workspaces`; `progress` gets a line per
/// volume.
///
/// # Errors
/// [`BackupError`](crate::BackupError); nothing is left then.
pub async fn restore(
    target: &Objects,
    manifest: &BackupManifest,
    data: &Path,
    workspaces: &Path,
    progress: impl Fn(String),
) -> Result<()> {
    let staged = Staged::new(data)?;
    let elsewhere = match manifest.files.iter().any(|file| file.root == SourceRoot::Workspaces) {
        true => {
            check_unused(workspaces)?;
            Some(Staged::new(workspaces)?)
        }
        false => None,
    };
    for file in &manifest.files {
        let root = match file.root {
            SourceRoot::Data => &staged,
            SourceRoot::Workspaces => elsewhere.as_ref().expect("it was made for such a file"),
        };
        write_file(target, file, &root.path).await?;
    }
    if !manifest.volumes.is_empty() {
        let pool = Pool::open(&staged.path, data_directory::pool_bytes(&staged.path)?)
            .during(|| "cannot make the pool".to_owned())?;
        for (index, volume) in manifest.volumes.iter().enumerate() {
            progress(format!("volume {} of {}: {}", index + 1, manifest.volumes.len(), volume.name));
            write_volume(target, volume, &pool).await?;
        }
        // The file system charges a volume only for committed data.
        pool.commit().during(|| "cannot write the pool out".to_owned())?;
        for volume in &manifest.volumes {
            engine::allow_for_restored(&pool, &volume.name, volume.charged_bytes)
                .during(|| format!("cannot limit volume {}", volume.name))?;
        }
        pool.commit().during(|| "cannot write the pool out".to_owned())?;
    }
    for file in manifest.files.iter().filter(|file| file.database) {
        let root = if file.root == SourceRoot::Data { Some(&staged) } else { elsewhere.as_ref() };
        database::verify(&root.expect("the file was written there").path.join(&file.path)).await?;
    }
    data_directory::mark(&staged.path)?;
    if let Some(elsewhere) = elsewhere {
        elsewhere.publish()?;
    }
    staged.publish()
}

/// A directory under a temporary name. Dropping it removes the directory unless it was published.
struct Staged {
    path: PathBuf,
    place: PathBuf,
    published: bool,
}

impl Staged {
    fn new(place: &Path) -> Result<Self> {
        let parent = parent_of(place)?;
        let name = place.file_name().ok_or_else(|| nameless(place))?.to_string_lossy().into_owned();
        let path = parent.join(format!(".{name}.restore-{}", std::process::id()));
        fs::create_dir_all(&parent).map_err(data_directory::write_error(&parent))?;
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(data_directory::write_error(&path))?;
        Ok(Self { path, place: parent.join(name), published: false })
    }

    /// Syncs the directory and renames it to its place. An empty directory there is removed first.
    fn publish(mut self) -> Result<()> {
        sync_tree(&self.path)?;
        match fs::remove_dir(&self.place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).during(|| format!("{} is not empty", self.place.display()));
            }
            _ => {}
        }
        fs::rename(&self.path, &self.place).map_err(data_directory::write_error(&self.place))?;
        self.published = true;
        File::open(parent_of(&self.place)?)?.sync_all().during(|| "cannot sync the parent directory".to_owned())
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

fn parent_of(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    Ok(path.parent().ok_or_else(|| nameless(&path))?.to_owned())
}

fn nameless(path: &Path) -> BackupError {
    BackupError::Refused(format!("{} cannot be restored to", path.display()))
}

fn check_empty(path: &Path) -> Result<()> {
    if !is_empty(path)? {
        return refused(format!("{} is not empty; restore into a directory that is absent or empty", path.display()));
    }
    Ok(())
}

fn check_unused(workspaces: &Path) -> Result<()> {
    if !is_empty(workspaces)? {
        return refused(format!(
            "{} has records of workspaces already; name an absent or empty directory for those of the backup by \
             --workspaces DIR (programs look into $XDG_DATA_HOME/sandbar/workspaces)",
            workspaces.display()
        ));
    }
    Ok(())
}

/// Whether a directory is absent or has no entries.
fn is_empty(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).during(|| format!("cannot look into {}", path.display())),
    }
}

/// Refuses a backup whose numeric owners mean other users to this process.
///
/// # Errors
/// [`BackupError::Refused`](crate::BackupError::Refused) says who can restore it.
pub fn check_ids(manifest: &BackupManifest) -> Result<()> {
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
    refused(format!("the backup was made by the server of {made_by}: the owners of its files mean nothing here; {fix}"))
}

/// Syncs the entries of every directory; files are synced when they are written. Volumes are left
/// out: the pool commits them, and untrusted code decides how deep they are.
fn sync_tree(root: &Path) -> Result<()> {
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() && entry.path() != engine::pool::volumes_in(root) {
                left.push(entry.path());
            }
        }
        File::open(&folder)?.sync_all().during(|| format!("cannot sync {}", folder.display()))?;
    }
    Ok(())
}

/// Reads every object of the backup and compares it with the manifest.
///
/// # Errors
/// [`BackupError::Damaged`](crate::BackupError::Damaged) names the first object that differs.
pub async fn verify(target: &Objects, manifest: &BackupManifest) -> Result<()> {
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
) -> Result<()> {
    let found = target.size(&key).await?;
    if found != Some(bytes) {
        return damaged(format!("the backup is damaged: {key} has {} bytes, not {bytes}", found.unwrap_or(0)));
    }
    let mut hasher = Sha256::new();
    let mut pieces = std::pin::pin!(target.read(key.clone(), bytes));
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        hasher.update(&piece);
        take(&piece)?;
    }
    if hex(hasher.finalize()) != sha256 {
        return damaged(format!("the backup is damaged: {key} is not what was stored"));
    }
    Ok(())
}

async fn write_file(target: &Objects, entry: &BackedUpFile, root: &Path) -> Result<()> {
    let relative = Path::new(&entry.path);
    let plain = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if !relative.components().all(plain) {
        return damaged(format!("the backup is damaged: {} leads out of the data directory", entry.path));
    }
    let path = root.join(relative);
    let folder = path.parent().expect("it is below its root");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(data_directory::write_error(folder))?;
    let mut file =
        File::options().create_new(true).write(true).open(&path).map_err(data_directory::write_error(&path))?;
    copy(target, entry.key(), entry.bytes, &entry.sha256, |piece| file.write_all(piece)).await?;
    file.set_permissions(fs::Permissions::from_mode(entry.mode))?;
    Ok(file.sync_all().map_err(data_directory::write_error(&path))?)
}

async fn write_volume(target: &Objects, entry: &BackedUpVolume, pool: &Pool) -> Result<()> {
    pool.create_volume(&entry.name, VOLUME_LIMIT_BYTES).during(|| format!("cannot make volume {}", entry.name))?;
    let mut command = tokio::process::Command::from(source::unpack(&pool.path_of(&entry.name)));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut tar = command.spawn().during(|| "cannot run tar".to_owned())?;
    let mut input = tar.stdin.take().expect("its input is piped");
    let warnings = tokio::spawn(source::read_tar_warnings(tar.stderr.take().expect("its errors are piped")));
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
        return refused(format!("cannot unpack volume {}: {}", entry.name, warnings.await.unwrap_or_default().trim()));
    }
    Ok(())
}
