//! Copies of volumes that exist while a backup reads them, made in a pool that a server has open.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::quota::Quota;
use super::{Pool, PoolError, is_subvolume};
use crate::sys::btrfs;

/// Before the volume's name. The pool accepts no such name for a volume.
const PREFIX: &str = ".backup-";

/// Whether an entry of a pool is such a copy, perhaps of a process that was killed.
pub fn is_frozen_copy(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// One volume at one moment. Dropping it removes the copy.
#[derive(Debug)]
pub struct FrozenCopy {
    /// The pool's directory.
    root: File,
    name: String,
    path: PathBuf,
    /// What is charged to the volume itself. A copy of a template is not charged what it shares
    /// with the template.
    charged_bytes: Option<u64>,
}

impl Pool {
    /// Removes the copies that killed backups have left; one that cannot be removed is logged and
    /// left. The caller makes sure that no backup runs.
    pub fn remove_frozen_copies(&self) -> Result<(), PoolError> {
        let failed = || PoolError::io(format!("list {}", self.root.display()));
        for entry in fs::read_dir(&self.root).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            let Some(name) = name.to_str().filter(|name| is_frozen_copy(name)) else { continue };
            match self.destroy(&self.root, name) {
                Ok(()) => info!(name, "removed what a killed backup had left in the pool"),
                Err(error) => warn!(name, %error, "what a killed backup has left in the pool stays"),
            }
        }
        Ok(())
    }
}

impl FrozenCopy {
    /// Copies the volume `name` of the pool whose volumes are in `root`; `None` where volumes are
    /// plain directories, which cannot be copied instantly.
    ///
    /// # Errors
    /// The file system's, among others when there is no such volume.
    pub fn take(root: &Path, name: &str) -> io::Result<Option<Self>> {
        let source = root.join(name);
        if !is_subvolume(&source) {
            return source.metadata().map(|_| None);
        }
        let copy = format!("{PREFIX}{name}");
        let directory = File::open(root)?;
        btrfs::snapshot_subvolume(&directory, File::open(&source)?, &copy, None)?;
        // Counted after the copy, which has written everything out.
        let charged_bytes = Quota::charged_bytes(&source).ok().flatten();
        Ok(Some(Self { root: directory, path: root.join(&copy), name: copy, charged_bytes }))
    }

    /// The copy `name` that a killed process left in `root`; dropping it removes it.
    ///
    /// # Errors
    /// The file system's, when the pool's directory cannot be opened.
    pub fn adopt(root: &Path, name: &str) -> io::Result<Self> {
        Ok(Self { root: File::open(root)?, path: root.join(name), name: name.to_owned(), charged_bytes: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was charged to the volume at that moment; `None` without quotas.
    pub fn charged_bytes(&self) -> Option<u64> {
        self.charged_bytes
    }
}

impl Drop for FrozenCopy {
    fn drop(&mut self) {
        // What cannot be removed now, the next backup or start of the server removes.
        let _ = btrfs::destroy_subvolume(&self.root, &self.name);
    }
}
