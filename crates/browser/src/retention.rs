//! Retention of screenshots on disk: keeps the newest within limits of age, number and size.

use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::store::ROOT;

/// The limits. Each one removes the oldest screenshots first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub max_age: Duration,
    pub max_count: usize,
    pub max_bytes: u64,
}

impl Retention {
    /// Deletes screenshots beyond the limits below a store's directory, and directories that become
    /// empty. Other files stay. Returns the number of deleted screenshots.
    ///
    /// # Errors
    /// The [`io::Error`] of a directory that cannot be read or a file that cannot be deleted. Files
    /// that another process deletes concurrently are no error.
    pub fn enforce(&self, directory: &Path, now: SystemTime) -> io::Result<usize> {
        let mut files = Vec::new();
        collect(&directory.join(ROOT), 0, &mut files)?;
        files.sort_by_key(|file| Reverse(file.modified));
        let (mut count, mut bytes, mut removed) = (0, 0_u64, 0);
        for StoredFile { path, modified, size } in files {
            count += 1;
            bytes = bytes.saturating_add(size);
            let age = now.duration_since(modified).unwrap_or_default();
            if count <= self.max_count && bytes <= self.max_bytes && age <= self.max_age {
                continue;
            }
            present(fs::remove_file(&path))?;
            removed += 1;
            // The directories of the occasion and of the job; removing a non-empty one fails.
            for parent in path.ancestors().skip(1).take(2) {
                if fs::remove_dir(parent).is_err() {
                    break;
                }
            }
        }
        Ok(removed)
    }
}

struct StoredFile {
    path: PathBuf,
    modified: SystemTime,
    size: u64,
}

/// Files are at most at `screenshots/JOB/OCCASION/NAME.webp`; symbolic links are not followed.
fn collect(directory: &Path, depth: usize, files: &mut Vec<StoredFile>) -> io::Result<()> {
    let Some(entries) = present(fs::read_dir(directory))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let Some(found) = present(entry.metadata())? else { continue };
        let path = entry.path();
        if found.is_dir() && depth < 2 {
            collect(&path, depth + 1, files)?;
        } else if found.is_file() && path.extension().is_some_and(|end| end == "webp") {
            files.push(StoredFile { path, modified: found.modified()?, size: found.len() });
        }
    }
    Ok(())
}

/// [`None`] for a file that another process deleted.
fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: Retention = Retention { max_age: Duration::MAX, max_count: usize::MAX, max_bytes: u64::MAX };

    /// Six screenshots of ten bytes, one per minute, the newest now, and a file that is no
    /// screenshot.
    fn check(limits: Retention, kept: &[u64]) {
        let directory = tempfile::tempdir().expect("a directory");
        let now = SystemTime::now();
        let path = |minute: u64| directory.path().join(format!("{ROOT}/job-{minute}/agent/{minute}_mobile.webp"));
        for minute in 0..6 {
            let path = path(minute);
            fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
            let file = fs::File::create(&path).expect("a file");
            file.set_len(10).expect("a size");
            file.set_modified(now - Duration::from_secs(60 * minute)).expect("a time");
        }
        let note = directory.path().join(format!("{ROOT}/job-5/agent/note.txt"));
        fs::write(&note, "x".repeat(1000)).expect("a file");
        let removed = limits.enforce(directory.path(), now).expect("it is enforced");
        let left: Vec<u64> = (0..6).filter(|minute| path(*minute).exists()).collect();
        assert_eq!((left.as_slice(), removed), (kept, 6 - kept.len()), "{limits:?}");
        assert!(note.exists());
        assert_eq!(directory.path().join(ROOT).join("job-4").exists(), kept.contains(&4));
    }

    #[test]
    fn each_limit_removes_the_oldest_first() {
        check(UNLIMITED, &[0, 1, 2, 3, 4, 5]);
        check(Retention { max_count: 2, ..UNLIMITED }, &[0, 1]);
        check(Retention { max_bytes: 45, ..UNLIMITED }, &[0, 1, 2, 3]);
        check(Retention { max_age: Duration::from_secs(150), ..UNLIMITED }, &[0, 1, 2]);
        check(Retention { max_count: 0, ..UNLIMITED }, &[]);
    }

    #[test]
    fn empty_store_needs_no_cleanup() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(UNLIMITED.enforce(directory.path(), SystemTime::now()).expect("nothing to do"), 0);
    }
}
