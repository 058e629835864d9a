//! Writes and removals in a volume: files are written aside and appear complete by a rename; trees
//! are moved aside and then removed.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, open, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::VolumeDirectory;
use super::content::{ContentError, Entry, Owner, sync};
use super::path::VolumePath;
use crate::removal::{names, remove_all};

/// Names in staging are used once per process; the next server starts with an empty staging
/// directory.
static NEXT: AtomicU64 = AtomicU64::new(0);

fn fresh_name() -> CString {
    CString::new(NEXT.fetch_add(1, Ordering::Relaxed).to_string()).expect("a number has no zero byte")
}

/// A file that is being written. Drop removes it unless it was placed.
#[derive(Debug)]
pub struct Staged {
    file: File,
    directory: OwnedFd,
    name: CString,
}

impl Staged {
    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Absent once it is in its place.
        let _ = unlinkat(&self.directory, self.name.as_c_str(), AtFlags::empty());
    }
}

impl VolumeDirectory {
    /// Creates a file that has no place yet.
    pub fn stage(&self) -> Result<Staged, ContentError> {
        let (directory, name) = (self.open_staging()?, fresh_name());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, name.as_c_str(), flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
        Ok(Staged { file: file.into(), directory, name })
    }

    /// Renames a staged file to its place and creates the directories above it. An existing file is
    /// replaced, or the call is refused. On success the block device has the file, its name and its
    /// owner: a power cut does not undo it.
    pub fn place(
        &self,
        staged: &Staged,
        path: &VolumePath,
        owner: Owner,
        replace: bool,
    ) -> Result<Entry, ContentError> {
        let owner = owner.check()?.or_usual(0o644);
        let Some((above, name)) = path.split() else {
            return Err(ContentError::Unfit(path.to_string(), "a directory"));
        };
        owner.apply(staged.file.as_fd(), self.privilege).map_err(io::Error::from)?;
        staged.file.sync_all()?;
        let directory = self.make_all(&above)?;
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        renameat_with(&staged.directory, staged.name.as_c_str(), &directory, name, flags)
            .map_err(ContentError::about(path))?;
        sync(directory.as_fd())?;
        self.stat(path)
    }

    /// Removes an entry with everything below it. A link is removed, not its target.
    pub fn remove(&self, path: &VolumePath) -> Result<(), ContentError> {
        let Some((above, name)) = path.split() else {
            return Err(ContentError::Invalid("the root of a volume cannot be removed".to_owned()));
        };
        let (directory, staging, doomed) =
            (self.follow(&above, OFlags::DIRECTORY)?, self.open_staging()?, fresh_name());
        let aside = || renameat(&directory, name, &staging, doomed.as_c_str());
        match aside() {
            // Even a rename takes space. What is removed in place frees some.
            Err(Errno::DQUOT | Errno::NOSPC) => {
                if thin_out(&directory, name).map_err(ContentError::about(path))? {
                    return Ok(sync(directory.as_fd())?);
                }
                aside().map_err(ContentError::about(path))?;
            }
            moved => moved.map_err(ContentError::about(path))?,
        }
        sync(directory.as_fd())?;
        remove_all(&staging, doomed).map_err(io::Error::from)?;
        Ok(())
    }

    /// Removes what a server left incomplete: an upload that was never acknowledged, a tree whose
    /// removal was.
    pub(super) fn clear_staging(&self) -> io::Result<()> {
        let staging = self.open_staging()?;
        for name in names(&staging)? {
            remove_all(&staging, name)?;
        }
        Ok(())
    }

    fn open_staging(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(open(&self.staging, flags, Mode::empty())?)
    }
}

/// Removes the entry `name` in place or, if it is a directory, the files in it. Returns whether the
/// entry is gone.
fn thin_out(directory: &OwnedFd, name: &str) -> rustix::io::Result<bool> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        gone => return gone.map(|()| true),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = openat(directory, name, flags, Mode::empty())?;
    for file in names(&inner)? {
        match unlinkat(&inner, file.as_c_str(), AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::NOENT) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
