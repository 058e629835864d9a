//! Copies of volumes that exist while a backup reads them, made in a pool that a server has open.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::is_subvolume;
use crate::sys::btrfs;

/// Before the volume's name. The pool takes no such name for a volume.
const PREFIX: &str = ".backup-";

/// Whether an entry of a pool is such a copy, perhaps of a process that was killed.
pub fn is_frozen_copy(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// One volume as it was at one moment. Dropping it removes the copy.
#[derive(Debug)]
pub struct FrozenCopy {
    /// The pool's directory.
    root: File,
    name: String,
    path: PathBuf,
}

impl FrozenCopy {
    /// A copy of the volume `name` of the pool whose volumes are in `root`; none where volumes are
    /// plain directories, which cannot be copied in a moment.
    ///
    /// # Errors
    /// The file system refuses, or there is no such volume.
    pub fn take(root: &Path, name: &str) -> io::Result<Option<Self>> {
        let source = root.join(name);
        if !is_subvolume(&source) {
            return source.metadata().map(|_| None);
        }
        let copy = format!("{PREFIX}{name}");
        let directory = File::open(root)?;
        btrfs::snapshot_subvolume(&directory, File::open(&source)?, &copy, None)?;
        Ok(Some(Self { root: directory, path: root.join(&copy), name: copy }))
    }

    /// The copy `name` that a killed process left in `root`; dropping it removes it.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub fn adopt(root: &Path, name: &str) -> io::Result<Self> {
        Ok(Self { root: File::open(root)?, path: root.join(name), name: name.to_owned() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FrozenCopy {
    fn drop(&mut self) {
        // What cannot be removed now, the next backup removes.
        let _ = btrfs::destroy_subvolume(&self.root, &self.name);
    }
}
