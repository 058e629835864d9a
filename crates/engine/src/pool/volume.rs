//! One sandbox's writable files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::quota::{Quota, SubvolumeGroup};

/// A directory whose content is limited. Dropping it changes nothing; [`super::Pool::remove`]
/// deletes it.
#[derive(Debug)]
pub struct Volume {
    path: PathBuf,
    /// `None`: the limit is stored and not enforced.
    group: Option<SubvolumeGroup>,
    limit: AtomicU64,
    /// What the kernel allows beyond the limit.
    allowance: AtomicU64,
}

impl Volume {
    pub(super) fn open(path: PathBuf, quota: Option<Quota>, limit: u64) -> io::Result<Self> {
        let directory = File::open(&path)?;
        let group = quota.map(|quota| quota.group_of(&directory)).transpose()?;
        Ok(Self { path, group, limit: AtomicU64::new(limit), allowance: AtomicU64::new(0) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the kernel refuses writes past the limit.
    pub fn is_limit_hard(&self) -> bool {
        self.group.is_some()
    }

    /// Bytes in use. With quotas one read of a kernel counter; without, a walk over all files, so
    /// not for hot paths.
    pub fn used_bytes(&self) -> io::Result<u64> {
        match &self.group {
            Some(group) => group.used_bytes(),
            None => disk_usage(&self.path),
        }
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. One below what is in use is allowed: then nothing more can be written
    /// until files are deleted.
    pub fn set_limit(&self, bytes: u64) -> io::Result<()> {
        self.limit.store(bytes, Ordering::Relaxed);
        self.apply_limit()
    }

    /// Lets the volume be charged this much beyond its limit: what its copies share with it stays
    /// charged to it even after it has deleted or overwritten that, because the kernel charges the
    /// writer.
    pub fn set_allowance(&self, bytes: u64) -> io::Result<()> {
        self.allowance.store(bytes, Ordering::Relaxed);
        self.apply_limit()
    }

    fn apply_limit(&self) -> io::Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        group.set_limit(self.limit_bytes().saturating_add(self.allowance.load(Ordering::Relaxed)))
    }
}

/// The blocks of everything below `path`. Entries that vanish during the walk count as nothing.
/// Links are not followed.
fn disk_usage(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let Ok(found) = entry.and_then(|entry| Ok((entry.metadata()?, entry.path()))) else { continue };
            let (metadata, path) = found;
            // The size of a file with several names is divided among them, so that the sum is right
            // when all are inside.
            let names = if metadata.is_dir() { 1 } else { metadata.nlink().max(1) };
            bytes += metadata.blocks() * 512 / names;
            if metadata.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(bytes)
}
