//! Volumes: files that belong to no sandbox and may be mounted in several, within a limit of their own.
//!
//! ```text
//!   NAME/files     what sandboxes see
//!   NAME/staging   what is being written or removed from outside; they do not see it
//! ```
//! Both lie in one volume of the pool, so that a rename leads from one to the other. Sandboxes write to `files` while we look
//! at it, and as they like: links to anywhere, trees without end, names that change between two looks. So every path is followed by
//! the kernel with the volume for its root, and what was found is held by descriptor from there on.

mod content;
mod path;
mod staging;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::boot::{Workshop, check_name};
use crate::error::EngineError;
use crate::standing::Standing;

pub use content::{ContentError, Entry, Kind, Owner};
pub use path::{InvalidPath, VolumePath};
pub use staging::Staged;

/// The ids of `user` in every sandbox, to whom a new volume belongs.
const USER: u32 = 1000;

/// Where a volume's files are on the host, and how they are reached from outside. Every call blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDirectory {
    files: PathBuf,
    staging: PathBuf,
    standing: Standing,
}

pub(crate) fn volume_files(volume: &Path) -> PathBuf {
    volume.join("files")
}

impl VolumeDirectory {
    fn at(directory: &Path) -> Self {
        let standing = Standing::of_this_process();
        Self { files: volume_files(directory), staging: directory.join("staging"), standing }
    }

    /// Makes an empty volume in `directory`, which exists.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let volume = Self::at(directory);
        fs::create_dir_all(&volume.staging)?;
        // Made ready before it has its name: a crash leaves no volume that its user cannot write
        // to.
        let fresh = volume.staging.join("files");
        fs::create_dir(&fresh)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o755))?;
        volume.standing.give(&fresh, USER, USER)?;
        fs::rename(&fresh, &volume.files)?;
        Ok(volume)
    }

    /// The volume in `directory`; clears away what a server left half done. None when its files are
    /// not there: they are never made again.
    pub fn open(directory: &Path) -> io::Result<Option<Self>> {
        let volume = Self::at(directory);
        if !volume.files.is_dir() {
            return Ok(None);
        }
        fs::create_dir_all(&volume.staging)?;
        if let Err(error) = volume.clear_staging() {
            // Sandboxes do not see it, and its space is the volume's own.
            warn!(volume = %directory.display(), %error, "what an earlier server left half done in a volume stays");
        }
        Ok(Some(volume))
    }
}

/// Whether `directory` holds a volume that has something in it.
pub(crate) fn holds_content(directory: &Path) -> bool {
    fs::read_dir(volume_files(directory)).is_ok_and(|mut entries| entries.next().is_some())
}

impl Workshop {
    /// Makes an empty volume. Blocks.
    pub(crate) fn create_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        check_name(name)?;
        let volume = self.pool.create_shared_volume(name, limit_bytes)?;
        let created = VolumeDirectory::create(volume.path()).and_then(|directory| {
            self.pool.sync_new(&volume, &[&directory.files, &directory.staging])?;
            Ok(directory)
        });
        created.map_err(EngineError::io(format!("prepare volume {name}")))
    }

    /// Opens a volume that exists. Blocks.
    pub(crate) fn open_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        check_name(name)?;
        self.count_nested(name);
        let volume = self.pool.open_volume(name, limit_bytes)?;
        let opened = VolumeDirectory::open(volume.path()).map_err(EngineError::io(format!("prepare volume {name}")))?;
        let path = volume_files(volume.path());
        opened.ok_or_else(|| EngineError::FilesMissing { name: name.to_owned(), path })
    }

    /// Has the volume's limit count what is nested in it. Where that fails, the seccomp filter still refuses sandboxes to
    /// nest anything.
    pub(crate) fn count_nested(&self, name: &str) {
        if let Err(error) = self.pool.count_nested(name) {
            warn!(name, %error, "subvolumes inside a volume do not count against its limit");
        }
    }
}
