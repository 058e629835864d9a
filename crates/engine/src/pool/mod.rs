//! The storage of sandboxes' writable files: one volume per sandbox, with a limit of its bytes.
//!
//! Three kinds, best first. The content of a data directory decides; an empty one gets the best
//! kind that the machine supports:
//!
//! | kind | volumes are | limit |
//! |---|---|---|
//! | [`PoolKind::NativeBtrfs`] | subvolumes of the data directory's file system | hard |
//! | [`PoolKind::LoopBtrfs`] | subvolumes of a btrfs in `pool.img`, mounted at `pool` | hard |
//! | [`PoolKind::Directory`] | directories | soft: counted by a walk, not enforced |
//!
//! Invariants: an existing image is never formatted, whatever is wrong with it; it is attached to
//! one loop device at most, because two would be two file systems that overwrite each other; quotas
//! are never enabled in a file system that is not ours, because that keeps older kernels from
//! mounting it.

mod commit;
mod copy;
mod forecast;
mod frozen;
mod image;
mod nested;
mod quota;
mod reserve;
mod spare;
mod trash;
mod volume;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use durable::Unwritable;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{StatVfs, StatVfsMountFlags, fstatvfs, statfs, statvfs};
use tracing::warn;

use self::commit::GroupCommit;
use self::image::Mounted;
use self::quota::Quota;
use self::reserve::Reserve;
use crate::privilege::Privilege;
use crate::removal;
use crate::sys::btrfs;

pub use self::forecast::{Forecast, Shortcoming, forecast};
pub use self::frozen::{FrozenCopy, is_frozen_copy};
pub(crate) use self::nested::unlock;
pub use self::volume::Volume;

const GIB: u64 = 1 << 30;
const BTRFS_MAGIC: u64 = 0x9123_683E;
/// Below this a btrfs is all metadata; also a sign of a size given in the wrong unit.
const SMALLEST_IMAGE: u64 = GIB / 4;
/// Why a server that is not root has no better pool than directories.
const ONLY_ROOT: &str = "only root can mount a file system that limits what each sandbox writes";
/// Quota groups that one removal of a volume tries to remove.
const DOOMED_AT_ONCE: usize = 4;
/// Time between two trims while the host is short of space; each walks over all of the pool's free
/// space.
const TRIM_INTERVAL: Duration = Duration::from_secs(20);

/// What kind of volumes a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    NativeBtrfs,
    LoopBtrfs,
    Directory,
}

/// Why the pool or a volume of it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Freeing space on the host or removing sandboxes helps.
    #[error(
        "the file system of {} has {free} bytes left, and {reserve} are kept free for the sandboxes that exist",
        path.display()
    )]
    NoSpace { path: PathBuf, free: u64, reserve: u64 },
    /// A volume to open or copy does not exist. Only a create makes a volume: an empty one in its
    /// place would look like its content.
    #[error("volume {name} is missing: there is nothing at {}", path.display())]
    Missing { name: String, path: PathBuf },
    #[error("{0:?} cannot be the name of a volume")]
    InvalidName(String),
    /// The image exists and is left as it is.
    #[error(
        "the pool image {} cannot be mounted and was left untouched; `dmesg | grep -i btrfs` says why, and \
         `mount -o ro,loop,rescue=all {} /mnt` reads what can be read (`btrfs check` needs btrfs-progs 6.7)",
        image.display(), image.display()
    )]
    Unmountable { image: PathBuf, source: io::Error },
    /// It is mounted already, for sandboxes that run, and cannot be used. Ending them lets it be
    /// mounted again.
    #[error("the file system in {} was aborted by the kernel, and running sandboxes hold it", image.display())]
    Held { image: PathBuf, source: io::Error },
    /// Opening the pool again helps, once the host has space and no process uses the file system.
    #[error(transparent)]
    ReadOnly(Unwritable),
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
}

impl PoolError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// All volumes of one data directory. Drop unmounts what opening mounted; running sandboxes keep
/// their own mounts.
#[derive(Debug)]
pub struct Pool {
    kind: PoolKind,
    /// The directory whose entries are the volumes, and an open descriptor of it.
    root: PathBuf,
    directory: File,
    /// The data directory: on the host's file system, whichever that is.
    data: PathBuf,
    quota: Option<Quota>,
    /// Why the pool is not of a better kind.
    shortcoming: Option<String>,
    /// Deleted subvolumes whose quota groups may still exist.
    doomed: Mutex<VecDeque<u64>>,
    /// Volumes whose limit is known to include the subvolumes nested in them.
    counted: Mutex<HashSet<u64>>,
    /// When the guard last returned free space to the host.
    trimmed: Mutex<Option<Instant>>,
    commits: GroupCommit,
    /// Only of a pool on an image.
    reserve: Option<Reserve>,
    fault: Mutex<Option<Unwritable>>,
    _mounted: Option<Mounted>,
}

impl Pool {
    /// Opens the pool of the data directory `data`, or creates it. A new image has `image_bytes`,
    /// sparse.
    ///
    /// The mount is made in the caller's mount namespace.
    /// # Errors
    /// [`PoolError::Unmountable`] when there is an image that cannot be mounted: no other kind
    /// replaces it, since the sandboxes' files are in there. [`PoolError::Held`] when running
    /// sandboxes use an aborted one.
    pub fn open(data: &Path, image_bytes: u64) -> Result<Self, PoolError> {
        fs::create_dir_all(data).map_err(PoolError::io(format!("make {}", data.display())))?;
        let data = data.canonicalize().map_err(PoolError::io(format!("find {}", data.display())))?;
        if image::exists(&data) {
            return Self::on_image(data);
        }
        if !Privilege::detect().is_root() {
            return Self::in_directories(data, PoolKind::Directory, None, Some(ONLY_ROOT.to_owned()));
        }
        let on_btrfs = is_btrfs(&data).map_err(PoolError::io(format!("examine {}", data.display())))?;
        if on_btrfs && let Some(quota) = Quota::find(&data).map_err(PoolError::io("read the quota state"))? {
            return Self::in_directories(data, PoolKind::NativeBtrfs, Some(quota), None);
        }
        if has_volumes(&data) {
            let why = format!("{} holds volumes made without btrfs", volumes_in(&data).display());
            return Self::in_directories(data, PoolKind::Directory, None, Some(why));
        }
        match image::create(&data, image_bytes) {
            Ok(()) => match Self::on_image(data.clone()) {
                Ok(pool) => Ok(pool),
                Err(error) => {
                    // Nothing was ever written to it, so removing it loses nothing.
                    image::discard(&data);
                    Self::in_directories(data, PoolKind::Directory, None, Some(explain(&error)))
                }
            },
            Err(error) => Self::in_directories(data, PoolKind::Directory, None, Some(explain(&error))),
        }
    }

    fn on_image(data: PathBuf) -> Result<Self, PoolError> {
        let mounted = image::mount(&data)?;
        let root = mounted.path().to_owned();
        let directory = open_directory(&root)?;
        let quota = Quota::enable(&root).map_err(PoolError::io("switch on quotas in the pool"))?;
        let shortcoming = quota.is_none().then(|| "the kernel's btrfs has no quotas".to_owned());
        let reserve = Reserve::new(&data, &image::image_in(&data)).map_err(PoolError::io("open the pool image"))?;
        let pool = Self {
            kind: PoolKind::LoopBtrfs,
            root,
            directory,
            data,
            quota,
            shortcoming,
            doomed: Mutex::default(),
            counted: Mutex::default(),
            trimmed: Mutex::default(),
            commits: GroupCommit::default(),
            reserve: Some(reserve),
            fault: Mutex::default(),
            _mounted: Some(mounted),
        };
        pool.find_stale_groups();
        if let Some(reserve) = &pool.reserve {
            reserve.enlarge_metadata(&pool.directory);
        }
        pool.guard().map_err(PoolError::io("limit the pool to what the host has"))?;
        Ok(pool)
    }

    fn in_directories(
        data: PathBuf,
        kind: PoolKind,
        quota: Option<Quota>,
        shortcoming: Option<String>,
    ) -> Result<Self, PoolError> {
        let root = volumes_in(&data);
        fs::create_dir_all(&root).map_err(PoolError::io(format!("make {}", root.display())))?;
        let directory = open_directory(&root)?;
        Ok(Self {
            kind,
            root,
            directory,
            data,
            quota,
            shortcoming,
            doomed: Mutex::default(),
            counted: Mutex::default(),
            trimmed: Mutex::default(),
            commits: GroupCommit::default(),
            reserve: None,
            fault: Mutex::default(),
            _mounted: None,
        })
    }

    /// The directory of the volumes and the data directory, which may be on other file systems.
    pub fn directories(&self) -> [&Path; 2] {
        [&self.root, &self.data]
    }

    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Why limits are soft or the pool is not of a better kind; `None` when it is of the best kind.
    pub fn shortcoming(&self) -> Option<&str> {
        self.shortcoming.as_deref()
    }

    /// Creates volume `name`, which must not exist, with this limit.
    /// # Errors
    /// [`PoolError::NoSpace`] when the host is nearly full: a full host turns the pool read-only
    /// for all sandboxes.
    pub fn create_volume(&self, name: &str, limit_bytes: u64) -> Result<Volume, PoolError> {
        check_name(name)?;
        self.check_space()?;
        let failed = || PoolError::io(format!("make volume {name}"));
        if self.kind == PoolKind::Directory {
            fs::create_dir(self.root.join(name)).map_err(failed())?;
        } else {
            let charge = self.quota.as_ref().map(|quota| quota.charge(limit_bytes));
            btrfs::create_subvolume(&self.directory, name, charge).map_err(failed())?;
        }
        self.existing(name, limit_bytes).map_err(failed())
    }

    /// Opens volume `name` and sets its limit. Works on a full host, too.
    /// # Errors
    /// [`PoolError::Missing`] when there is none; it is not created.
    pub fn open_volume(&self, name: &str, limit_bytes: u64) -> Result<Volume, PoolError> {
        check_name(name)?;
        self.check_present(name)?;
        let volume = self.existing(name, limit_bytes).map_err(PoolError::io(format!("open volume {name}")))?;
        volume.set_limit(limit_bytes).map_err(PoolError::io(format!("limit volume {name}")))?;
        Ok(volume)
    }

    fn check_present(&self, name: &str) -> Result<(), PoolError> {
        let path = self.root.join(name);
        match path.metadata() {
            Ok(found) if found.is_dir() => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(PoolError::io(format!("examine {}", path.display()))(error))
            }
            _ => Err(PoolError::Missing { name: name.to_owned(), path }),
        }
    }

    /// Syncs everything that sandboxes and volumes changed. Concurrent callers share a `syncfs`.
    /// Blocks.
    pub fn commit(&self) -> io::Result<()> {
        self.commits.run(|| Ok(rustix::fs::syncfs(&self.directory)?))
    }

    /// As [`Pool::commit`], for writes that no caller waits for, in a file system of our own. The
    /// host's file system is left to the host. Blocks.
    pub(crate) fn write_back(&self) -> io::Result<()> {
        if self.kind() != PoolKind::LoopBtrfs {
            return Ok(());
        }
        // The kernel reports a lost write once per descriptor: that of `commit` must not miss it.
        Ok(rustix::fs::syncfs(File::open(&self.root)?)?)
    }

    /// Syncs the directory entry of a new volume, and `files`, the files and directories directly
    /// in it. What sandboxes write elsewhere stays in memory. Blocks.
    pub(crate) fn sync_new(&self, volume: &Volume, files: &[&Path]) -> io::Result<()> {
        for file in files {
            File::open(file)?.sync_all()?;
        }
        if self.kind == PoolKind::Directory {
            durable::sync_directory(volume.path())?;
            // The pool's directory, or that of the spares.
            return durable::sync_directory(volume.path().parent().unwrap_or(&self.root));
        }
        // A new subvolume cannot be in btrfs's log, so that syncing anything in it commits the
        // whole transaction, with the pool's entry for it. A sync of the pool's directory would
        // make this caller wait for the next transaction, too.
        if files.is_empty() { durable::sync_directory(volume.path()) } else { Ok(()) }
    }

    /// Removes volume `name` with everything in it; absent is success. A subvolume is removed at
    /// once, a directory file by file.
    pub fn remove(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        self.destroy(&self.root, name).map_err(PoolError::io(format!("remove volume {name}")))?;
        self.remove_note(name)
    }

    /// Removes the entry `name` of `parent`, whatever it is; absent is success.
    fn destroy(&self, parent: &Path, name: &str) -> io::Result<()> {
        let removed = if is_subvolume(&parent.join(name)) {
            self.destroy_subvolume(parent, name)
        } else {
            removal::remove_tree(parent, name)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes quota groups of deleted subvolumes that are not busy any more.
    fn forget_doomed_groups(&self) {
        let mut doomed = self.doomed();
        // A few of the oldest each time, so that a removal stays cheap after thousands of others.
        for _ in 0..doomed.len().min(DOOMED_AT_ONCE) {
            if let Some(group) = doomed.pop_front()
                && still_there(btrfs::remove_group(&self.directory, group))
            {
                doomed.push_back(group);
            }
        }
    }

    fn doomed(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.doomed.lock()
    }

    /// Finds the quota groups of subvolumes that were deleted under an earlier server. If a volume
    /// cannot be examined, no group is stale, since any of them might belong to it.
    fn find_stale_groups(&self) {
        match self.stale_groups() {
            Ok(groups) => self.doomed().extend(groups.into_keys()),
            Err(error) => warn!(error = explain(&error), "quota groups of deleted volumes are left"),
        }
    }

    fn stale_groups(&self) -> Result<BTreeMap<u64, u64>, PoolError> {
        let Some(quota) = &self.quota else { return Ok(BTreeMap::new()) };
        let mut groups = quota.subvolume_groups().map_err(PoolError::io("list the pool's quota groups"))?;
        let volumes = self.list()?.into_iter().map(|name| self.root.join(name));
        let mut present = HashSet::new();
        for path in volumes.chain(self.trashed_paths()?).chain(self.spare_paths()?) {
            let found = File::open(&path).and_then(btrfs::subvolume_id).and_then(|id| {
                present.extend(self.nested_below(id)?.into_iter().map(|nested| nested.id));
                present.insert(id);
                Ok(())
            });
            found.map_err(PoolError::io(format!("examine {}", path.display())))?;
        }
        groups.retain(|_, subvolume| !present.contains(subvolume));
        Ok(groups)
    }

    /// The path of volume `name`, whether it exists or not.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The names of all volumes. Files beside them are not volumes.
    pub fn list(&self) -> Result<Vec<String>, PoolError> {
        let failed = || PoolError::io(format!("list {}", self.root.display()));
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            if let Ok(name) = entry.file_name().into_string()
                && check_name(&name).is_ok()
                && entry.file_type().map_err(failed())?.is_dir()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Bytes that can still be written: the free space of the pool, but never more than that of the
    /// file system that holds the image.
    pub fn free_bytes(&self) -> io::Result<u64> {
        Ok(free(&statvfs(&self.root)?).min(free(&statvfs(&self.data)?)))
    }

    /// Keeps running sandboxes from filling the host through a sparse image: together they may use
    /// what the host has free beyond the reserve, and get EDQUOT after that. A full host would make
    /// the kernel turn the pool read-only. To be called about every second, because other programs
    /// write to the host too; it may block for a while.
    pub fn guard(&self) -> io::Result<()> {
        let mut host = statvfs(&self.data)?;
        // First the ballast: where the host is full, the metadata gets its blocks from it.
        if let Some(reserve) = &self.reserve {
            reserve.balance(host.f_blocks * host.f_frsize, free(&host))?;
        }
        // A read-only file system accepts neither limits nor trims; `fault` reports it.
        if self.fault().is_some() {
            return Ok(());
        }
        if let Some(reserve) = &self.reserve {
            reserve.allocate_metadata(&self.directory, host.f_blocks * host.f_frsize)?;
        }
        let (Some(quota), PoolKind::LoopBtrfs) = (&self.quota, self.kind) else { return Ok(()) };
        if free(&host) < 2 * reserve(&host) && self.is_trim_due() {
            // The host gets the space of deleted files back by itself, but minutes later.
            btrfs::sync(&self.directory)?;
            self.trim_data()?;
            host = statvfs(&self.data)?;
        }
        quota.limit_total(free(&host).saturating_sub(reserve(&host)))
    }

    /// Gives the blocks of deleted data back to the host. Those of metadata stay: the next change
    /// of the tree is written there, and without a block the kernel aborts the file system.
    fn trim_data(&self) -> io::Result<()> {
        for chunk in btrfs::chunks(&self.directory)?.into_iter().filter(|chunk| !chunk.holds_metadata) {
            btrfs::trim(&self.directory, chunk.logical, chunk.length)?;
        }
        Ok(())
    }

    fn is_trim_due(&self) -> bool {
        let mut last = self.trimmed.lock();
        let due = last.is_none_or(|at| at.elapsed() >= TRIM_INTERVAL);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// Why the pool accepts no changes any more, if so. Reads a flag of the kernel; does no I/O.
    pub fn fault(&self) -> Option<Unwritable> {
        let mut fault = self.fault.lock();
        let flags = fstatvfs(&self.directory).map(|found| found.f_flag);
        if !flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY)) {
            *fault = None;
        } else if fault.is_none() {
            let cause = match self.kind {
                PoolKind::LoopBtrfs => {
                    "the kernel aborted its file system, because the host's disk was full or failed (`dmesg | grep -i \
                     btrfs`); what was synced is kept. Free space, then restart the server: `sandbar up` ends the \
                     sandboxes, keeps their files and mounts it again"
                }
                PoolKind::NativeBtrfs | PoolKind::Directory => {
                    "the file system of the data directory is read-only (`dmesg` says why); mount it writable, then \
                     restart the server"
                }
            };
            *fault = Some(Unwritable::now(&self.root, cause));
        }
        fault.clone()
    }

    fn check_space(&self) -> Result<(), PoolError> {
        if let Some(fault) = self.fault() {
            return Err(PoolError::ReadOnly(fault));
        }
        let host = statvfs(&self.data).map_err(io::Error::from);
        let host = host.map_err(PoolError::io(format!("examine {}", self.data.display())))?;
        let (free, reserve) = (free(&host), reserve(&host));
        if free < reserve { Err(PoolError::NoSpace { path: self.data.clone(), free, reserve }) } else { Ok(()) }
    }
}

/// What stays free on the host: 2 %, at least 1 GiB, at most 8 GiB.
fn reserve(host: &StatVfs) -> u64 {
    (host.f_blocks * host.f_frsize / 50).clamp(GIB, 8 * GIB)
}

fn free(vfs: &StatVfs) -> u64 {
    vfs.f_bavail * vfs.f_frsize
}

/// The directory in the data directory `data` for volumes that are not in an image.
pub fn volumes_in(data: &Path) -> PathBuf {
    data.join("volumes")
}

/// Whether there is a pool of any kind in the data directory `data`, mounted or not.
pub fn exists(data: &Path) -> bool {
    image::exists(data) || volumes_in(data).is_dir()
}

/// Whether there are volumes that are directories, in use or in the trash.
pub(crate) fn has_volumes(data: &Path) -> bool {
    let is_volume = |entry: fs::DirEntry| entry.file_name().to_str().is_some_and(|name| check_name(name).is_ok());
    let holds = |path: &Path| fs::read_dir(path).is_ok_and(|entries| entries.flatten().any(is_volume));
    let root = volumes_in(data);
    holds(&root) || holds(&root.join(trash::DIRECTORY))
}

/// Whether the file system at `path` is btrfs, which has checksums of everything.
///
/// # Errors
/// The kernel's, when the path cannot be examined.
pub fn is_btrfs(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.f_type as u64 == BTRFS_MAGIC)
}

/// Only the root directory of a subvolume has this inode number on btrfs.
fn is_subvolume(path: &Path) -> bool {
    let is_root = |found: fs::Metadata| found.is_dir() && found.ino() == btrfs::FIRST_FREE_OBJECT;
    is_btrfs(path).unwrap_or(false) && fs::symlink_metadata(path).is_ok_and(is_root)
}

fn still_there(removed: io::Result<()>) -> bool {
    matches!(removed, Err(error) if error.kind() != io::ErrorKind::NotFound)
}

fn open_directory(path: &Path) -> Result<File, PoolError> {
    File::open(path).map_err(PoolError::io(format!("open {}", path.display())))
}

fn explain(error: &PoolError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn check_name(name: &str) -> Result<(), PoolError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.len() <= 200 && name.chars().all(plain) {
        return Ok(());
    }
    Err(PoolError::InvalidName(name.to_owned()))
}
