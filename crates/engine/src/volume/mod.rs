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
    /// The volume in `directory`; makes it there if there is none, and clears away what a server left half done.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let standing = Standing::of_this_process();
        let volume = Self { files: volume_files(directory), staging: directory.join("staging"), standing };
        fs::create_dir_all(&volume.staging)?;
        volume.clear_staging()?;
        if !volume.files.is_dir() {
            // Made ready before it has its name: a crash leaves no volume that its user cannot write to.
            let fresh = volume.staging.join("files");
            fs::create_dir(&fresh)?;
            fs::set_permissions(&fresh, Permissions::from_mode(0o755))?;
            standing.give(&fresh, USER, USER)?;
            fs::rename(&fresh, &volume.files)?;
        }
        Ok(volume)
    }
}

impl Workshop {
    /// Makes the volume, or opens it. Blocks.
    pub(crate) fn open_volume(&self, name: &str, limit_bytes: u64) -> Result<VolumeDirectory, EngineError> {
        check_name(name)?;
        let volume = self.pool.volume(name, limit_bytes)?;
        VolumeDirectory::open(volume.path()).map_err(EngineError::io(format!("prepare volume {name}")))
    }
}
