//! What is backed up: the files of a data directory, and the volumes of its pool.
//!
//! A running server has the pool's image mounted in its own mount namespace, which is reached
//! through `/proc/PID/root`; volumes that are plain directories are read at their path. On btrfs a
//! volume is read from a read-only snapshot. Elsewhere the volume itself is read, which is
//! consistent for paused sandboxes, templates and volumes without a writer. A killed backup leaves
//! its snapshots (`.backup-NAME`) in the pool until the next backup or the next start of the server
//! removes them.

use crate::error::{BackupError, During as _, Result, refused};
use crate::manifest::{SourceRoot, hex};
use data_directory::{DATABASE_NOTES, DataDirectory, FoundServer};
use engine::pool::{FrozenCopy, Pool, is_frozen_copy};
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;

/// Directory of copies of databases before they are uploaded; the backup's lock protects it.
pub(crate) const DRAFTS: &str = "backup.drafts";
/// Not backed up: created by every server, valid for the running process only, or specific to this
/// machine.
const VOLATILE: [&str; 17] = [
    "lock",
    "server.json",
    // A restored copy would make every command wait for the server of the old machine.
    "expected-server.json",
    "ended",
    // Passwords, of studios of this machine.
    DATABASE_NOTES,
    "runtime",
    "run",
    "pool",
    "pool.img",
    "pool.img.new",
    "pool.reserve",
    "volumes",
    "layers",
    "backup.lock",
    "backup.last",
    "scrub.last",
    DRAFTS,
];
/// Endings of the files that SQLite keeps beside a database.
const SQLITE_COMPANIONS: [&[u8]; 3] = [b"-wal", b"-shm", b"-journal"];
/// Endings of files that are written under a temporary name before an atomic rename.
const DRAFT_ENDINGS: [&[u8]; 2] = [b".new", b".part"];
/// Limit of a path below its volume. The kernel accepts paths of at most 4,095 bytes, of which the
/// volume's own path needs some. Programs in sandboxes can create longer paths by relative steps:
/// files below them are left out, and everything else is backed up.
pub(crate) const MAX_PATH_BYTES: usize = 3_900;
const MAX_WARNING_BYTES: u64 = 16 << 10;
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// A file to be copied.
pub(crate) struct DurableFile {
    pub root: SourceRoot,
    pub path: PathBuf,
    pub relative: String,
    pub metadata: Metadata,
    pub database: bool,
}

/// Every durable file below `directory`, databases first.
pub(crate) fn files_below(root: SourceRoot, directory: &Path) -> Result<Vec<DurableFile>> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(folder) = left.pop() {
        let at_top = root == SourceRoot::Data && folder == directory;
        let Some(entries) = unless_vanished(fs::read_dir(&folder), &folder)? else { continue };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if at_top && VOLATILE.iter().any(|volatile| name == *volatile) {
                continue;
            }
            let Some(metadata) = unless_vanished(path.symlink_metadata(), &path)? else { continue };
            if metadata.is_dir() {
                left.push(path);
            } else if metadata.is_file() && !is_transient(&path) {
                let relative = path.strip_prefix(directory).expect("it was found below").to_str();
                let relative = relative
                    .ok_or_else(|| BackupError::Refused(format!("{} has no plain name", path.display())))?
                    .to_owned();
                let database = is_database(&path);
                found.push(DurableFile { root, path, relative, metadata, database });
            }
        }
    }
    found.sort_by(|a, b| b.database.cmp(&a.database).then_with(|| a.relative.cmp(&b.relative)));
    Ok(found)
}

/// Whether a regular file is a companion of a SQLite database or a draft. Names of directories are
/// not checked: users choose them, for example `travel-journal`.
fn is_transient(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let database = SQLITE_COMPANIONS.iter().find_map(|end| name.strip_suffix(*end));
    DRAFT_ENDINGS.iter().any(|end| name.ends_with(end))
        || database.is_some_and(|database| path.with_file_name(OsStr::from_bytes(database)).is_file())
}

fn is_database(path: &Path) -> bool {
    let mut head = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *SQLITE_MAGIC
}

/// The pool of a data directory, readable, and what keeps it open.
pub(crate) struct OpenPool {
    root: Option<PathBuf>,
    /// Held for a directory without a server, so that no other process opens the pool.
    _own: Option<(Pool, DataDirectory)>,
}

impl OpenPool {
    /// Opens the pool. The caller has entered its own mount namespace.
    pub(crate) fn open(data: &Path) -> Result<Self> {
        let has_image = data.join("pool.img").exists();
        let below = if has_image { data.join("pool") } else { data.join("volumes") };
        let root = match data_directory::find_server(data).during(|| format!("cannot look into {}", data.display()))? {
            // Not through `/proc/PID/root`: the server of an ordinary user may be in another user
            // namespace than this command, and the kernel refuses the access.
            FoundServer::Serving(_) if !has_image => below,
            FoundServer::Serving(note) => {
                let seen = Path::new("/proc").join(note.pid.to_string()).join("root");
                let root = seen.join(below.strip_prefix("/").unwrap_or(&below));
                root.read_dir().during(|| format!("cannot read the pool of process {}", note.pid))?;
                root
            }
            FoundServer::Busy => {
                return refused(format!("the server in {} is starting or stopping; try again", data.display()));
            }
            FoundServer::Absent | FoundServer::Dead { .. } if !has_image && !below.is_dir() => {
                return Ok(Self { root: None, _own: None });
            }
            FoundServer::Absent | FoundServer::Dead { .. } => {
                let Ok(directory) = DataDirectory::take(data)? else {
                    return refused(format!("a server has just started in {}; try again", data.display()));
                };
                let pool = Pool::open(data, directory.pool_bytes()?).during(|| "cannot open the pool".to_owned())?;
                return Ok(Self { root: Some(below), _own: Some((pool, directory)) });
            }
        };
        Ok(Self { root: Some(root), _own: None })
    }

    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Takes a consistent view of every volume. Dropping it deletes the snapshots.
    pub(crate) fn freeze(&self) -> Result<Vec<FrozenVolume>> {
        let Some(root) = &self.root else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in fs::read_dir(root).during(|| format!("cannot read {}", root.display()))? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_frozen_copy(&name) {
                // Left by a killed backup; dropping it deletes it.
                drop(FrozenCopy::adopt(root, &name)?);
            } else if !name.starts_with('.') && entry.file_type()?.is_dir() {
                names.push(name);
            }
        }
        names.sort();
        names.into_iter().filter_map(|name| FrozenVolume::take(root, name).transpose()).collect()
    }
}

/// A volume at one moment.
pub(crate) struct FrozenVolume {
    pub name: String,
    path: PathBuf,
    /// [`None`] where volumes are plain directories: files can change while they are read.
    copy: Option<FrozenCopy>,
}

impl FrozenVolume {
    /// Takes a snapshot if the pool can; [`None`] for a volume that was removed meanwhile.
    fn take(root: &Path, name: String) -> Result<Option<Self>> {
        let copy = match FrozenCopy::take(root, &name) {
            Ok(copy) => copy,
            Err(_) if !root.join(&name).exists() => return Ok(None),
            Err(error) => return Err(error).during(|| format!("cannot take a snapshot of volume {name}")),
        };
        let path = copy.as_ref().map_or_else(|| root.join(&name), |copy| copy.path().to_owned());
        Ok(Some(Self { name, path, copy }))
    }

    /// Whether the volume itself is read, while sandboxes can change it.
    pub(crate) fn is_live(&self) -> bool {
        self.copy.is_none()
    }

    /// What the volume is charged of its limit, where that is known.
    pub(crate) fn charged_bytes(&self) -> Option<u64> {
        self.copy.as_ref().and_then(FrozenCopy::charged_bytes)
    }

    /// Whether a live volume was deleted meanwhile.
    pub(crate) fn was_deleted(&self) -> bool {
        self.is_live() && !self.path.exists()
    }

    /// A digest of the name, kind, size, owner and times of every entry. It is equal when nothing
    /// was changed, because a change of content or attributes sets an inode's change time. Entries
    /// that vanish meanwhile are skipped.
    pub(crate) fn fingerprint(&self) -> Result<VolumeFingerprint> {
        let (mut hasher, mut left_out) = (Sha256::new(), false);
        if self.is_live() {
            // A file that was created and removed directly below changes only the directory's
            // times. With these the next fingerprint differs, so that no later backup reuses an
            // inconsistent archive.
            hash_entry(&mut hasher, Path::new(""), &self.path.symlink_metadata()?);
        }
        let tree = OpenTree::open(&self.path)?;
        let mut left = vec![PathBuf::new()];
        while let Some(folder) = left.pop() {
            let Some(listed) = unless_vanished(fs::read_dir(tree.path(&folder)), &folder)? else { continue };
            let mut entries = listed.collect::<io::Result<Vec<_>>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = folder.join(entry.file_name());
                if is_too_long(&path) {
                    left_out = true;
                    continue;
                }
                let Some(found) = unless_vanished(tree.path(&path).symlink_metadata(), &path)? else { continue };
                hash_entry(&mut hasher, &path, &found);
                if found.is_dir() {
                    left.push(path);
                }
            }
        }
        Ok(VolumeFingerprint { digest: hex(hasher.finalize()), left_out })
    }

    /// The command whose output is the volume as an archive, with owners, attributes and devices.
    pub(crate) fn archive(&self) -> Command {
        let mut command = Command::new("tar");
        // In this locale `?` matches one byte.
        command.env("LC_ALL", "C").args(["--anchored", "--wildcards", "--wildcards-match-slash"]);
        command.arg(format!("--exclude={}*", "?".repeat(MAX_PATH_BYTES)));
        command.args(["--create", "--gzip", "--format=posix", "--numeric-owner", "--acls", "--xattrs"]);
        command.args(["--xattrs-include=*", "--sparse", "--file=-", "--directory"]).arg(&self.path).arg(".");
        command
    }
}

/// The result of [`FrozenVolume::fingerprint`].
pub(crate) struct VolumeFingerprint {
    pub digest: String,
    /// Some paths are longer than [`MAX_PATH_BYTES`].
    pub left_out: bool,
}

/// An open directory. Its entries are reached by short paths through its descriptor.
pub(crate) struct OpenTree(File);

impl OpenTree {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        Ok(Self(File::open(root).during(|| format!("cannot read {}", root.display()))?))
    }

    pub(crate) fn path(&self, relative: &Path) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()).join(relative)
    }
}

/// Whether a path, relative to its volume, is too long for an archive, where `./` precedes it.
pub(crate) fn is_too_long(relative: &Path) -> bool {
    "./".len() + relative.as_os_str().len() >= MAX_PATH_BYTES
}

/// Reads tar's warnings, shortened: tar prints a line for every affected file.
pub(crate) async fn read_tar_warnings(mut pipe: ChildStderr) -> String {
    let mut text = Vec::new();
    // The rest is read too: a full pipe would block tar.
    let _ = (&mut pipe).take(MAX_WARNING_BYTES).read_to_end(&mut text).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&text).into_owned()
}

/// [`None`] for a file or directory that does not exist any more.
fn unless_vanished<T>(result: io::Result<T>, path: &Path) -> Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some).during(|| format!("cannot read {}", path.display())),
    }
}

fn hash_entry(hasher: &mut Sha256, relative: &Path, found: &Metadata) {
    hasher.update(relative.as_os_str().as_bytes());
    let facts = [u64::from(found.mode()), u64::from(found.uid()), u64::from(found.gid()), found.rdev()];
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    hasher.update([0]);
    facts.into_iter().chain([found.size(), found.ino()]).for_each(|fact| hasher.update(fact.to_le_bytes()));
    times.into_iter().for_each(|time| hasher.update(time.to_le_bytes()));
}

/// The command that extracts the archive of [`FrozenVolume::archive`] into a volume.
pub(crate) fn unpack(volume: &Path) -> Command {
    let mut command = Command::new("tar");
    command.args(["--extract", "--gzip", "--numeric-owner", "--same-owner", "--preserve-permissions", "--acls"]);
    command.args(["--xattrs", "--xattrs-include=*", "--file=-", "--directory"]).arg(volume);
    command
}
