//! Subvolumes inside volumes. Sandboxes mount the btrfs directory of a volume itself, and btrfs
//! lets the owner of a directory create subvolumes in it. The seccomp filter refuses that. A
//! subvolume that an older version, an administrator or another process has made counts against the
//! volume's limit and is removed with the volume.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use parking_lot::MutexGuard;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::quota::tree_group;
use super::{Pool, PoolError, Volume, is_subvolume};
use crate::sys::btrfs::{self, Nested};

impl Pool {
    /// As [`Pool::create_volume`], for a volume that sandboxes mount as it is: subvolumes that are
    /// made in it count, too.
    pub fn create_shared_volume(&self, name: &str, limit_bytes: u64) -> Result<Volume, PoolError> {
        self.create_volume(name, limit_bytes)?;
        let counted = self.count_nested(name).and_then(|()| self.existing(name, limit_bytes));
        counted.map_err(|error| {
            // The error is the one to return; the next start sweeps what stays.
            let _ = self.remove(name);
            PoolError::io(format!("limit volume {name}"))(error)
        })
    }

    /// Includes what is nested in volume `name` in its limit, if that is not the case yet: volumes
    /// of older versions do not.
    pub fn count_nested(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(name);
        let Some(quota) = self.quota.as_ref().filter(|_| is_subvolume(&path)) else { return Ok(()) };
        let id = btrfs::subvolume_id(File::open(&path)?)?;
        if self.counted().contains(&id) {
            return Ok(());
        }
        quota.count_tree(id, || Ok(self.nested_below(id)?.into_iter().map(|nested| nested.id).collect()))?;
        self.counted().insert(id);
        Ok(())
    }

    fn counted(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.counted.lock()
    }

    /// Every subvolume below the subvolume `id`, each after the one that contains it.
    pub(super) fn nested_below(&self, id: u64) -> io::Result<Vec<Nested>> {
        let mut found = btrfs::nested_in(&self.directory, id)?;
        let mut next = 0;
        while let Some(parent) = found.get(next).map(|nested| nested.id) {
            found.extend(btrfs::nested_in(&self.directory, parent)?);
            next += 1;
        }
        Ok(found)
    }

    /// Deletes the subvolume `name` in `parent` with all that are nested in it, deepest first.
    pub(super) fn destroy_subvolume(&self, parent: &Path, name: &str) -> io::Result<()> {
        let (directory, subvolume) = (File::open(parent)?, File::open(parent.join(name))?);
        let id = btrfs::subvolume_id(&subvolume)?;
        let destroy = || btrfs::destroy_subvolume(&directory, name);
        match destroy() {
            Err(error) if is_obstructed(&error) => {
                // In a full volume nothing could be unlocked: that takes space, too.
                if let Some(quota) = &self.quota {
                    quota.group_of(&subvolume)?.set_limit(u64::MAX)?;
                }
                self.destroy_nested(id)?;
                unlock(&subvolume);
                destroy()?;
            }
            destroyed => destroyed?,
        }
        self.forget_groups_of(id);
        Ok(())
    }

    fn destroy_nested(&self, id: u64) -> io::Result<()> {
        for nested in self.nested_below(id)?.into_iter().rev() {
            let directory = btrfs::open_directory(&self.directory, nested.parent, nested.directory)?;
            let subvolume = btrfs::open_directory(&self.directory, nested.id, btrfs::FIRST_FREE_OBJECT)?;
            // Its parent may be read-only as a whole, and the directory in it locked.
            let above = btrfs::open_directory(&self.directory, nested.parent, btrfs::FIRST_FREE_OBJECT)?;
            [&above, &directory, &subvolume].into_iter().for_each(unlock);
            btrfs::destroy_subvolume(&directory, &nested.name)?;
            self.forget_groups_of(nested.id);
        }
        Ok(())
    }

    /// New kernels remove the quota group with its subvolume; older ones leave it, busy until the
    /// space is freed.
    fn forget_groups_of(&self, id: u64) {
        let Some(quota) = &self.quota else { return };
        self.counted().remove(&id);
        let tree = Some(tree_group(id)).filter(|group| quota.has_group(*group));
        self.doomed().extend([id].into_iter().chain(tree));
        self.forget_doomed_groups();
    }
}

/// Whether the obstacle to deleting a subvolume can be removed.
fn is_obstructed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTEMPTY | libc::EPERM | libc::EROFS))
}

/// Clears the flags that prevent a directory or a subvolume's root from being changed. The deletion
/// after it reports what is still wrong.
pub(crate) fn unlock(directory: &impl AsFd) {
    let _ = btrfs::make_writable(directory);
    if let Ok(flags) = ioctl_getflags(directory)
        && flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND)
    {
        let _ = ioctl_setflags(directory, flags - (IFlags::IMMUTABLE | IFlags::APPEND));
    }
}
