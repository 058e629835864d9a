//! Copies of volumes: instant on btrfs, whatever their size; elsewhere a copy of all files.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use super::{Pool, PoolError, PoolKind, Volume, check_name, is_subvolume};
use crate::sys::btrfs;

impl Pool {
    /// Creates volume `to`, which must not exist, with all files of `from`. The caller stops all
    /// writers of `from` first. The copy is on the disk when this returns: on btrfs the kernel
    /// commits a snapshot by itself.
    ///
    /// On btrfs a crash leaves the whole copy or none; elsewhere part of one may be left under the
    /// new name.
    /// # Errors
    /// [`PoolError::NoSpace`] when the host is nearly full; [`PoolError::Missing`] when there is no
    /// `from`.
    pub fn copy(&self, from: &str, to: &str, limit_bytes: u64) -> Result<Volume, PoolError> {
        self.copy_into(from, &self.root, to, limit_bytes)
    }

    /// As [`Pool::copy`], with the copy in a directory of the pool.
    pub(super) fn copy_into(
        &self,
        from: &str,
        directory: &Path,
        to: &str,
        limit_bytes: u64,
    ) -> Result<Volume, PoolError> {
        check_name(from)?;
        check_name(to)?;
        self.check_present(from)?;
        self.check_space()?;
        let (source, target) = (self.root.join(from), directory.join(to));
        let failed = || PoolError::io(format!("copy volume {from} to {to}"));
        if target.symlink_metadata().is_ok() {
            return Err(failed()(io::ErrorKind::AlreadyExists.into()));
        }
        let copied = if self.kind == PoolKind::Directory {
            copy_tree(&source, &target).and_then(|()| self.commit())
        } else {
            let charge = self.quota.as_ref().map(|quota| quota.charge(limit_bytes));
            File::open(&source).and_then(|source| btrfs::snapshot_subvolume(File::open(directory)?, source, to, charge))
        };
        copied.map_err(failed())?;
        self.existing_at(&target, limit_bytes).map_err(failed())
    }

    /// Volume `name` as it is, with the limit it is known to have.
    pub(crate) fn existing(&self, name: &str, limit_bytes: u64) -> io::Result<Volume> {
        self.existing_at(&self.root.join(name), limit_bytes)
    }

    pub(super) fn existing_at(&self, path: &Path, limit_bytes: u64) -> io::Result<Volume> {
        let quota = self.quota.clone().filter(|_| is_subvolume(path));
        Volume::open(path.to_owned(), quota, limit_bytes)
    }
}

/// Copies with owners, times, devices, links and attributes, all of which an overlay needs. `cp`
/// supports that, and shares blocks where the file system can.
fn copy_tree(source: &Path, target: &Path) -> io::Result<()> {
    let output = Command::new("cp").args(["-a", "--reflink=auto", "-T", "--"]).args([source, target]).output()?;
    if output.status.success() {
        return Ok(());
    }
    // The error of the copy is the one to return. What is left belongs to no sandbox, and the next
    // sweep removes it.
    let _ = fs::remove_dir_all(target);
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(stderr.lines().next().unwrap_or("cp failed").to_owned()))
}
