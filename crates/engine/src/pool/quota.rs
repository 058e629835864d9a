//! What btrfs counts and limits, subvolume by subvolume.
//!
//! Limits are set by ioctl; what is used is read from `/sys/fs/btrfs/ID/qgroups`, which is current. The quota tree that an
//! ioctl could search is written only at the end of a transaction, up to 30 s late.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::sys::btrfs::{self, Charge, QuotaMode};

/// The quota groups of one btrfs.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    /// The kernel's directory with one entry a group.
    groups: PathBuf,
}

impl Quota {
    /// The quotas of the file system at `path`, if they are on.
    pub(super) fn find(path: &Path) -> io::Result<Option<Self>> {
        let groups = groups_of(&File::open(path)?)?;
        // The directory appears with the quotas and goes with them.
        Ok(groups.is_dir().then_some(Self { groups }))
    }

    /// As [`Quota::find`], switching them on if they are off; none if the kernel has no kind of them.
    pub(super) fn enable(path: &Path) -> io::Result<Option<Self>> {
        if let Some(quota) = Self::find(path)? {
            return Ok(Some(quota));
        }
        let file = File::open(path)?;
        for mode in [QuotaMode::Simple, QuotaMode::Full] {
            match btrfs::enable_quota(&file, mode) {
                Ok(()) => return Self::find(path),
                // A command the kernel does not know (before 6.7), or quotas compiled out.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// How a new volume is charged.
    pub(super) fn charge(&self, limit: u64) -> Charge {
        Charge { limit, parent: None }
    }

    /// The group of the subvolume whose root directory `directory` is.
    pub(super) fn group_of(&self, directory: File) -> io::Result<SubvolumeGroup> {
        let id = btrfs::subvolume_id(&directory)?;
        Ok(SubvolumeGroup { counters: self.groups.join(format!("0_{id}")), id, directory })
    }

    /// The numbers of all groups that belong or belonged to subvolumes which users made.
    pub(super) fn subvolume_groups(&self) -> io::Result<Vec<u64>> {
        let mut ids = Vec::new();
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
    /// What is on disk and what is still on its way there; both count against the limit.
    pub(super) fn used_bytes(&self) -> io::Result<u64> {
        Ok(counter(&self.counters.join("referenced"))? + counter(&self.counters.join("rsv_data"))?)
    }

    pub(super) fn set_limit(&self, bytes: u64) -> io::Result<()> {
        btrfs::limit_group(&self.directory, self.id, bytes)
    }
}

fn counter(file: &Path) -> io::Result<u64> {
    fs::read_to_string(file)?.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn groups_of(file: &File) -> io::Result<PathBuf> {
    let id = btrfs::file_system_id(file)?;
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(Path::new("/sys/fs/btrfs").join(parts.join("-")).join("qgroups"))
}
