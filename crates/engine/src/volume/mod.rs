//! Volumes: files that belong to no sandbox and may be mounted in several, with a limit of their
//! own.
//!
//! ```text
//!   NAME/files     what sandboxes see
//!   NAME/staging   what the server writes or removes; sandboxes do not see it
//! ```
//! Both are in one volume of the pool, so that a rename can move entries between them. Sandboxes
//! write to `files` concurrently, and anything: links to anywhere, trees without end, names that
//! change between two calls. So the kernel resolves every path with the volume as its root, and the
//! result is used by its descriptor from there on.

mod content;
mod path;
mod staging;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::boot::SandboxBuilder;
use crate::error::NamespacesError;
use crate::privilege::Privilege;

pub use content::{ContentError, Entry, Kind, Owner};
pub use path::{InvalidPath, VolumePath};
pub use staging::Staged;

/// The id of `user` in every sandbox, which owns a new volume.
const USER: u32 = 1000;

/// The paths of a volume's files on the host, and operations on them from outside. Every call
/// blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDirectory {
    files: PathBuf,
    staging: PathBuf,
    privilege: Privilege,
}

pub(crate) fn volume_files(volume: &Path) -> PathBuf {
    volume.join("files")
}

impl VolumeDirectory {
    fn at(directory: &Path) -> Self {
        let privilege = Privilege::detect();
        Self { files: volume_files(directory), staging: directory.join("staging"), privilege }
    }

    /// Creates an empty volume in `directory`, which exists.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let volume = Self::at(directory);
        fs::create_dir_all(&volume.staging)?;
        // Complete before it has its name: a crash leaves no volume that its user cannot write to.
        let fresh = volume.staging.join("files");
        fs::create_dir(&fresh)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o755))?;
        volume.privilege.give(&fresh, USER, USER)?;
        fs::rename(&fresh, &volume.files)?;
        Ok(volume)
    }

    /// Opens the volume in `directory`, and removes what an earlier server left incomplete. `None`
    /// when its files do not exist: they are never created again.
    pub fn open(directory: &Path) -> io::Result<Option<Self>> {
        let volume = Self::at(directory);
        if !volume.files.is_dir() {
            return Ok(None);
        }
        fs::create_dir_all(&volume.staging)?;
        if let Err(error) = volume.clear_staging() {
            // Sandboxes do not see it, and its space is charged to the volume.
            warn!(volume = %directory.display(), %error, "what an earlier server left half done in a volume stays");
        }
        Ok(Some(volume))
    }
}

/// Whether `directory` is a volume that has entries.
pub(crate) fn holds_content(directory: &Path) -> bool {
    fs::read_dir(volume_files(directory)).is_ok_and(|mut entries| entries.next().is_some())
}

impl SandboxBuilder {
    /// Creates an empty volume. Blocks.
    pub(crate) fn create_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, NamespacesError> {
        let volume = self.pool.create_shared_volume(name, limit_bytes)?;
        let created = VolumeDirectory::create(volume.path()).and_then(|directory| {
            self.pool.sync_new(&volume, &[&directory.files, &directory.staging])?;
            Ok(directory)
        });
        created.map_err(NamespacesError::io(format!("prepare volume {name}")))
    }

    /// Opens a volume that exists. Blocks.
    pub(crate) fn open_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, NamespacesError> {
        self.count_nested(name);
        let volume = self.pool.open_volume(name, limit_bytes)?;
        let opened =
            VolumeDirectory::open(volume.path()).map_err(NamespacesError::io(format!("prepare volume {name}")))?;
        let path = volume_files(volume.path());
        opened.ok_or_else(|| NamespacesError::FilesMissing { name: name.to_owned(), path })
    }

    /// Includes what is nested in the volume in its limit. If that fails, the seccomp filter still
    /// prevents sandboxes from nesting anything.
    pub(crate) fn count_nested(&self, name: &str) {
        if let Err(error) = self.pool.count_nested(name) {
            warn!(name, %error, "subvolumes inside a volume do not count against its limit");
        }
    }
}
