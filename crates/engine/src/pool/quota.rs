//! Quotas of btrfs, per subvolume.
//!
//! Limits are set by ioctl; usage is read from `/sys/fs/btrfs/ID/qgroups`, which is current. The
//! quota tree that an ioctl could search is written only at the end of a transaction, up to 30 s
//! late.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sys::btrfs::{self, Charge, QuotaMode};

/// The group 1/0, which adds up all volumes of a pool that has a file system of its own.
const TOTAL: u64 = LEVEL_1;
const LEVEL_1: u64 = 1 << 48;
/// Bit in the number of a level-1 group that counts one volume with all that is nested in it; the
/// lower bits are the number of the volume's subvolume. Far from the numbers that an administrator
/// gives to groups.
const TREE: u64 = 1 << 47;

/// The quota groups of one btrfs.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    /// Not in a volume: a change of a group is charged to the subvolume that it is made through,
    /// which may be full.
    file: Arc<File>,
    /// The kernel's directory with one entry per group.
    groups: PathBuf,
    /// The group that adds up all volumes; `None` where the file system has other users too.
    total: Option<u64>,
    /// Whether a new subvolume joins the groups of the one that it is made in, as with simple
    /// quotas.
    inherits: bool,
}

impl Quota {
    /// The quotas of the file system at `path`, if they are enabled.
    pub(super) fn find(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let groups = groups_of(&file)?;
        // The kernel creates and removes the directory with the quotas.
        if !groups.is_dir() {
            return Ok(None);
        }
        let inherits = fs::read_to_string(groups.join("mode")).is_ok_and(|mode| mode.trim() == "squota");
        Ok(Some(Self { file: Arc::new(file), groups, total: None, inherits }))
    }

    /// The quotas of the pool's own file system at `path`, enabled if they were not, with a group
    /// that adds up all volumes; `None` if the kernel has no kind of quotas.
    pub(super) fn enable(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let Some(quota) = Self::find(path)?.map_or_else(|| Self::switch_on(path, &file), |quota| Ok(Some(quota)))?
        else {
            return Ok(None);
        };
        match btrfs::create_group(&file, TOTAL) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Some(Self { total: Some(TOTAL), ..quota })),
        }
    }

    fn switch_on(path: &Path, file: &File) -> io::Result<Option<Self>> {
        for mode in [QuotaMode::Simple, QuotaMode::Full] {
            match btrfs::enable_quota(file, mode) {
                Ok(()) => return Self::find(path),
                // A command that the kernel does not know (before 6.7), or quotas compiled out.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Limits all volumes together to what they use now and `headroom` more; no effect where they
    /// are not added up.
    pub(super) fn limit_total(&self, headroom: u64) -> io::Result<()> {
        let Some(total) = self.total else { return Ok(()) };
        let counters = self.groups.join("1_0");
        let limit = used(&counters)? + headroom;
        let before = counter(&counters.join("max_referenced"))?;
        // Every change is a write to the file system, so small ones are postponed.
        if limit.abs_diff(before) > (headroom / 16).max(4 << 20) {
            btrfs::limit_group(&self.file, total, limit)?;
        }
        Ok(())
    }

    /// How a new volume is charged.
    pub(super) fn charge(&self, limit: u64) -> Charge {
        Charge { limit, parent: self.total }
    }

    /// The group of the subvolume whose root directory `directory` is.
    pub(super) fn group_of(&self, directory: &File) -> io::Result<SubvolumeGroup> {
        let id = btrfs::subvolume_id(directory)?;
        let tree = Some(tree_group(id)).filter(|group| self.has_group(*group));
        Ok(SubvolumeGroup { counters: self.counters(tree.unwrap_or(id)), id, tree, file: Arc::clone(&self.file) })
    }

    /// Extends the limit of the subvolume `id` to all subvolumes that are nested in it: the
    /// existing ones, which `nested` lists, and future ones. Idempotent. No effect without simple
    /// quotas, where new subvolumes would not join.
    pub(super) fn count_tree(&self, id: u64, nested: impl FnOnce() -> io::Result<Vec<u64>>) -> io::Result<()> {
        if !self.inherits {
            return Ok(());
        }
        let group = tree_group(id);
        let unless_done = |done: io::Result<()>| match done {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        unless_done(btrfs::create_group(&self.file, group))?;
        btrfs::limit_group(&self.file, group, counter(&self.counters(id).join("max_referenced"))?)?;
        unless_done(btrfs::assign_group(&self.file, id, group))?;
        // Listed last: subvolumes that are made from here on join by themselves.
        for id in nested()? {
            unless_done(btrfs::assign_group(&self.file, id, group))?;
        }
        Ok(())
    }

    pub(super) fn has_group(&self, group: u64) -> bool {
        self.counters(group).is_dir()
    }

    fn counters(&self, group: u64) -> PathBuf {
        self.groups.join(format!("{}_{}", group / LEVEL_1, group % LEVEL_1))
    }

    /// What is charged to the subvolume whose root directory is at `path`; `None` without quotas.
    pub(super) fn charged_bytes(path: &Path) -> io::Result<Option<u64>> {
        let Some(quota) = Self::find(path)? else { return Ok(None) };
        quota.group_of(&File::open(path)?)?.used_bytes().map(Some)
    }

    /// All groups of subvolumes that users made, deleted ones included, and of volumes with what is
    /// nested in them, each with the number of its subvolume.
    pub(super) fn subvolume_groups(&self) -> io::Result<BTreeMap<u64, u64>> {
        let mut groups = BTreeMap::new();
        for entry in fs::read_dir(&self.groups)? {
            let name = entry?.file_name();
            let Some((level, id)) = name.to_str().and_then(|name| name.split_once('_')) else { continue };
            match (level, id.parse::<u64>()) {
                ("0", Ok(id)) if id >= btrfs::FIRST_FREE_OBJECT => drop(groups.insert(id, id)),
                ("1", Ok(id)) if id & TREE != 0 => drop(groups.insert(LEVEL_1 | id, id & !TREE)),
                _ => {}
            }
        }
        Ok(groups)
    }
}

/// The group that counts the subvolume `id` with all that is nested in it.
pub(super) fn tree_group(id: u64) -> u64 {
    LEVEL_1 | TREE | id
}

/// The quota groups that limit one volume.
#[derive(Debug)]
pub(super) struct SubvolumeGroup {
    /// Of the group of the tree, where there is one.
    counters: PathBuf,
    id: u64,
    tree: Option<u64>,
    file: Arc<File>,
}

impl SubvolumeGroup {
    pub(super) fn used_bytes(&self) -> io::Result<u64> {
        used(&self.counters)
    }

    pub(super) fn set_limit(&self, bytes: u64) -> io::Result<()> {
        [Some(self.id), self.tree]
            .into_iter()
            .flatten()
            .try_for_each(|group| btrfs::limit_group(&self.file, group, bytes))
    }
}

/// What is on disk and what is still to be written; both count against the limit.
fn used(counters: &Path) -> io::Result<u64> {
    Ok(counter(&counters.join("referenced"))? + counter(&counters.join("rsv_data"))?)
}

fn counter(file: &Path) -> io::Result<u64> {
    fs::read_to_string(file)?.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn groups_of(file: &File) -> io::Result<PathBuf> {
    Ok(btrfs::state_directory(btrfs::file_system_id(file)?).join("qgroups"))
}
