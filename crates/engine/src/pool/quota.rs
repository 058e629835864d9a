//! What btrfs counts and limits, subvolume by subvolume.
//!
//! Limits are set by ioctl; what is used is read from `/sys/fs/btrfs/ID/qgroups`, which is current. The quota tree that an
//! ioctl could search is written only at the end of a transaction, up to 30 s late.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::btrfs::{self, Charge, QuotaMode};

/// The group 1/0, which adds up all volumes of a pool that has a file system of its own.
const TOTAL: u64 = 1 << 48;

/// The quota groups of one btrfs.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    /// The kernel's directory with one entry a group.
    groups: PathBuf,
    /// The group that adds up all volumes; none where the file system has other users too.
    total: Option<u64>,
}

impl Quota {
    /// The quotas of the file system at `path`, if they are on.
    pub(super) fn find(path: &Path) -> io::Result<Option<Self>> {
        let groups = groups_of(&File::open(path)?)?;
        // The directory appears with the quotas and goes with them.
        Ok(groups.is_dir().then_some(Self { groups, total: None }))
    }

    /// The quotas of the pool's own file system at `path`, switched on if they were off, with a group that adds up all
    /// volumes; none if the kernel has no kind of quotas.
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
                // A command the kernel does not know (before 6.7), or quotas compiled out.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Limits all volumes together to what they use now and `headroom` more; nothing where they are not added up.
    pub(super) fn limit_total(&self, directory: &File, headroom: u64) -> io::Result<()> {
        let Some(total) = self.total else { return Ok(()) };
        let counters = self.groups.join("1_0");
        let limit = used(&counters)? + headroom;
        let before = counter(&counters.join("max_referenced"))?;
        // Every change is a write to the file system, so small ones wait.
        if limit.abs_diff(before) > (headroom / 16).max(4 << 20) {
            btrfs::limit_group(directory, total, limit)?;
        }
        Ok(())
    }

    /// How a new volume is charged.
    pub(super) fn charge(&self, limit: u64) -> Charge {
        Charge { limit, parent: self.total }
    }

    /// The group of the subvolume whose root directory `directory` is.
    pub(super) fn group_of(&self, directory: File) -> io::Result<SubvolumeGroup> {
        let id = btrfs::subvolume_id(&directory)?;
        Ok(SubvolumeGroup { counters: self.groups.join(format!("0_{id}")), id, directory })
    }

    /// The numbers of all groups that belong or belonged to subvolumes which users made.
    pub(super) fn subvolume_groups(&self) -> io::Result<BTreeSet<u64>> {
        let mut ids = BTreeSet::new();
        for entry in fs::read_dir(&self.groups)? {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_prefix("0_")).and_then(|id| id.parse::<u64>().ok());
            ids.extend(id.filter(|id| *id >= btrfs::FIRST_FREE_OBJECT));
        }
        Ok(ids)
    }
}

/// The quota group of one subvolume.
#[derive(Debug)]
pub(super) struct SubvolumeGroup {
    counters: PathBuf,
    id: u64,
    directory: File,
}

impl SubvolumeGroup {
    pub(super) fn used_bytes(&self) -> io::Result<u64> {
        used(&self.counters)
    }

    pub(super) fn set_limit(&self, bytes: u64) -> io::Result<()> {
        btrfs::limit_group(&self.directory, self.id, bytes)
    }
}

/// What is on disk and what is still on its way there; both count against the limit.
fn used(counters: &Path) -> io::Result<u64> {
    Ok(counter(&counters.join("referenced"))? + counter(&counters.join("rsv_data"))?)
}

fn counter(file: &Path) -> io::Result<u64> {
    fs::read_to_string(file)?.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn groups_of(file: &File) -> io::Result<PathBuf> {
    Ok(btrfs::state_directory(btrfs::file_system_id(file)?).join("qgroups"))
}
