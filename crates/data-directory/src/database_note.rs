//! The databases of studios that run as processes of their own. `sandbar down` looks there for the
//! workspaces of their jobs, and `sandbar backup` names what it does not include.
//!
//! One file for each database, locked while a studio uses it: the file outlives the studio, as the
//! sandboxes of its jobs do, and `sandbar down` removes it unless it is locked. A URL may have a
//! password, so only the owner can read the file.

use crate::error::{DataDirectoryError, failed, write_error};
use rustix::fs::{FlockOperation, flock};
use secret::Secret;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// In the data directory.
pub const DATABASE_NOTES: &str = "studio-databases";

/// The note of a studio; the kernel unlocks it when the process ends.
#[derive(Debug)]
pub struct DatabaseNote {
    _locked: File,
}

impl DatabaseNote {
    /// Notes the database of this process.
    pub fn write(data: &Path, url: &Secret) -> Result<Self, DataDirectoryError> {
        let directory = data.join(DATABASE_NOTES);
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(write_error(&directory))?;
        let digest = Sha256::digest(url.expose());
        let path = directory.join(hex::encode(&digest[..8]));
        loop {
            // Written once: a replaced file would take the note from the process that locked it.
            if !path.exists() {
                durable::write(&path, url.expose().as_bytes(), 0o600).map_err(write_error(&path))?;
            }
            let file = match File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.map_err(write_error(&path))?,
            };
            flock(&file, FlockOperation::LockShared).map_err(failed(|| format!("cannot lock {}", path.display())))?;
            // `sandbar down` may have removed the file before it was locked.
            let is_there =
                path.metadata().is_ok_and(|there| file.metadata().is_ok_and(|ours| ours.ino() == there.ino()));
            if is_there {
                return Ok(Self { _locked: file });
            }
        }
    }
}

/// The databases that studios of this data directory use or have used.
pub fn noted_databases(data: &Path) -> Vec<Secret> {
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(Secret::from);
    notes(data).into_iter().filter_map(read).collect()
}

/// Removes the notes of studios that do not run any more.
pub fn forget_databases(data: &Path) {
    for path in notes(data) {
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // A note that stays names a database in which the next `sandbar down` looks in vain.
            let _ = fs::remove_file(&path);
        }
    }
}

fn notes(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data.join(DATABASE_NOTES)).into_iter().flatten().flatten();
    let is_draft = |path: &PathBuf| path.extension().is_some();
    let mut notes: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| !is_draft(path)).collect();
    notes.sort();
    notes
}
