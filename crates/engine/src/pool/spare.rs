//! Spare volumes: created and committed ahead of the sandboxes that get them.
//!
//! A new volume is safe from a power cut only after btrfs has committed a transaction, which takes
//! as long as the rest of a create. A spare is committed before its sandbox is created, under the
//! name that this sandbox will have, in `.spares`. Taking it is a rename, which is not committed:
//! after a power cut the spare may be in `.spares` again, with what its sandbox wrote. Beside the
//! spares is the boot ID of the kernel that made them: under the same kernel no rename was undone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{Pool, PoolError, PoolKind, Volume, check_name};
use crate::sys::btrfs;

/// Beside the volumes. The pool accepts no such name for a volume.
const DIRECTORY: &str = ".spares";
/// In that directory. No volume has such a name.
const BOOT_ID: &str = ".boot_id";

impl Pool {
    /// Creates the empty spare `name` with this limit. Not yet on the disk.
    /// # Errors
    /// [`PoolError::NoSpace`] when the host is nearly full.
    pub fn create_spare(&self, name: &str, limit_bytes: u64) -> Result<Volume, PoolError> {
        check_name(name)?;
        self.check_space()?;
        let directory = self.spare_directory()?;
        let path = directory.join(name);
        let failed = || PoolError::io(format!("make the spare volume {name}"));
        let made = if self.kind == PoolKind::Directory {
            fs::create_dir(&path)
        } else {
            let charge = self.quota.as_ref().map(|quota| quota.charge(limit_bytes));
            File::open(&directory).and_then(|directory| btrfs::create_subvolume(&directory, name, charge))
        };
        made.map_err(failed())?;
        self.existing_at(&path, limit_bytes).map_err(failed())
    }

    /// Creates the spare `name` with all files of volume `from`, which no process writes to. The
    /// kernel commits it. Only where [`Pool::copies_are_instant`].
    /// # Errors
    /// [`PoolError::NoSpace`] when the host is nearly full; [`PoolError::Missing`] when there is no
    /// `from`.
    pub fn copy_to_spare(&self, from: &str, name: &str, limit_bytes: u64) -> Result<Volume, PoolError> {
        let directory = self.spare_directory()?;
        self.copy_into(from, &directory, name, limit_bytes)
    }

    /// Whether a copy of a volume takes no time and no space, whatever its size.
    pub fn copies_are_instant(&self) -> bool {
        self.kind != PoolKind::Directory
    }

    /// The path of the spare `name`, whether it exists or not.
    pub fn spare_path(&self, name: &str) -> PathBuf {
        self.root.join(DIRECTORY).join(name)
    }

    /// Makes the spare `name` a volume; returns whether there was such a spare.
    /// # Errors
    /// [`PoolError::NoSpace`] when the host is nearly full.
    pub fn take_spare(&self, name: &str) -> Result<bool, PoolError> {
        self.check_space()?;
        self.place_spare(name)
    }

    /// As [`Pool::take_spare`], also on a full host.
    /// # Errors
    /// [`PoolError::Io`], among others when there is a volume of that name.
    pub fn place_spare(&self, name: &str) -> Result<bool, PoolError> {
        check_name(name)?;
        match fs::rename(self.spare_path(name), self.root.join(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(PoolError::io(format!("take the spare volume {name}"))(error)),
        }
    }

    /// Removes the spare `name`; absent is success.
    pub fn remove_spare(&self, name: &str) -> Result<(), PoolError> {
        check_name(name)?;
        let removed = self.destroy(&self.root.join(DIRECTORY), name);
        removed.map_err(PoolError::io(format!("remove the spare volume {name}")))
    }

    /// The names and paths of all spares.
    pub fn spares(&self) -> Result<Vec<(String, PathBuf)>, PoolError> {
        let paths = self.spare_paths()?.into_iter();
        let named = paths.filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path)));
        Ok(named.collect())
    }

    /// Whether the running kernel made the spares. A file that cannot be read counts as another
    /// kernel's.
    pub fn spares_are_of_this_boot(&self) -> bool {
        let made_by = fs::read_to_string(self.root.join(DIRECTORY).join(BOOT_ID));
        made_by.is_ok_and(|made_by| boot_id().is_ok_and(|now| made_by == now))
    }

    pub(super) fn spare_paths(&self) -> Result<Vec<PathBuf>, PoolError> {
        let directory = self.root.join(DIRECTORY);
        let failed = || PoolError::io(format!("list {}", directory.display()));
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed())?,
        };
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed())?;
        Ok(paths.into_iter().filter(|path| path.is_dir()).collect())
    }

    fn spare_directory(&self) -> Result<PathBuf, PoolError> {
        let directory = self.side_directory(DIRECTORY)?;
        // Beside spares of an earlier kernel that could not be removed the older ID stays.
        if !self.spares_are_of_this_boot() && self.spare_paths()?.is_empty() {
            write_boot_id(&directory).map_err(PoolError::io(format!("write to {}", directory.display())))?;
        }
        Ok(directory)
    }
}

fn write_boot_id(directory: &Path) -> io::Result<()> {
    fs::write(directory.join(BOOT_ID), boot_id()?)
}

fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}
