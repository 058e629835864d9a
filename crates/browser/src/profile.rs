//! Profile directory of a browser: created for one run, removed with it.
//!
//! A file lock marks it as used and ends with this process, so the next start recognises and
//! removes the profiles of killed processes.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tracing::debug;

use crate::config::RunAs;
use crate::error::BrowserError;

const PREFIX: &str = "profile-";
/// A profile is created and locked in two steps; a younger one may be between them.
const MIN_ABANDONED_AGE: Duration = Duration::from_secs(60);

pub(crate) struct Profile {
    directory: TempDir,
    _lock: File,
}

impl Profile {
    pub(crate) fn create(parent: &Path, run_as: RunAs) -> Result<Self, BrowserError> {
        let failed = |source| BrowserError::Directory { path: parent.to_owned(), source };
        if !parent.is_dir() {
            fs::create_dir_all(parent).map_err(failed)?;
            // Other users may traverse the directory but not list it, whatever the umask.
            fs::set_permissions(parent, Permissions::from_mode(0o711)).map_err(failed)?;
        }
        let parent = &parent.canonicalize().map_err(failed)?;
        if let RunAs::Ids { uid, .. } = run_as {
            check_passable(parent, uid)?;
        }
        remove_abandoned(parent);
        let private = Permissions::from_mode(0o700);
        let directory = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(parent);
        let directory = directory.map_err(failed)?;
        let lock = File::open(directory.path()).map_err(failed)?;
        lock.lock().map_err(failed)?;
        if let RunAs::Ids { uid, gid } = run_as {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).map_err(failed)?;
        }
        Ok(Self { directory, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn check_passable(directory: &Path, uid: u32) -> Result<(), BrowserError> {
    let closed = directory.ancestors().find(|path| {
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        mode & 0o001 == 0
    });
    closed.map_or(Ok(()), |path| Err(BrowserError::DirectoryClosed { path: path.to_owned(), uid }))
}

/// Removes profiles of killed processes. The next start retries what cannot be removed.
fn remove_abandoned(parent: &Path) {
    for path in fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX)) {
            match remove_if_abandoned(&path) {
                Ok(true) => debug!(path = %path.display(), "removed the profile of a killed process"),
                Ok(false) => {}
                Err(error) => debug!(path = %path.display(), %error, "an old profile stays"),
            }
        }
    }
}

fn remove_if_abandoned(path: &PathBuf) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(path)?;
    let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
    if !metadata.is_dir() || age < MIN_ABANDONED_AGE {
        return Ok(false);
    }
    let lock = File::open(path)?;
    if lock.try_lock().is_err() {
        return Ok(false);
    }
    fs::remove_dir_all(path)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_profiles_are_removed_and_locked_ones_stay() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let used = Profile::create(parent.path(), RunAs::Itself).expect("a profile");
        let abandoned = parent.path().join("profile-old");
        fs::create_dir_all(abandoned.join("Default")).expect("a directory");
        for path in [used.path(), &abandoned] {
            let hour_ago = SystemTime::now() - Duration::from_secs(3600);
            File::open(path).and_then(|file| file.set_modified(hour_ago)).expect("a time that can be set");
        }
        let other = Profile::create(parent.path(), RunAs::Itself).expect("another profile");
        assert!(used.path().exists() && other.path().exists());
        assert!(!abandoned.exists());
    }

    #[test]
    fn unreachable_profile_directory_is_reported() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(parent.path(), Permissions::from_mode(0o700)).expect("our own directory");
        let refused = Profile::create(&parent.path().join("inner"), RunAs::Ids { uid: 1234, gid: 1234 });
        let error = refused.err().expect("it should be refused");
        let wanted = parent.path().canonicalize().expect("it exists");
        assert!(matches!(&error, BrowserError::DirectoryClosed { path, uid: 1234 } if *path == wanted), "{error:?}");
    }
}
