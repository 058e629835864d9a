//! Small files that survive a power cut, whole.
//!
//! Invariant: when a function here has returned `Ok`, the block device has the new content under
//! its name. When the process or the machine stops before that, the old content is there, or the
//! new one, never a part. Two processes that write the same name at once share one draft: callers
//! hold a lock.

#![forbid(unsafe_code)]

mod reserve;

pub use reserve::{RESERVE_BYTES, writable_bytes};

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Replaces the content of `path`: writes a draft beside it, syncs it, renames it and syncs the
/// directory.
///
/// The file has exactly the permission bits `mode`, whatever the umask is.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let draft = draft_of(path)?;
    write_draft(&draft, content, mode).and_then(|()| rename(&draft, path)).inspect_err(|_| {
        // The error of the write is the one to report; the next write truncates the draft.
        let _ = fs::remove_file(&draft);
    })
}

/// Renames a file or directory whose content is synced already, and syncs the directory that has it
/// then.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(directory_of(to))
}

/// Writes the entries of a directory to the disk: names that were added, replaced or removed.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn write_draft(draft: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(draft)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

fn draft_of(path: &Path) -> io::Result<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".new");
    Ok(path.with_file_name(name))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
    }

    #[test]
    fn content_and_mode_are_replaced_and_no_draft_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("key");
        for (content, mode) in [("one", 0o600), ("two", 0o666)] {
            write(&file, content.as_bytes(), mode).expect("it is written");
            let found = fs::metadata(&file).expect("it is there").permissions().mode() & 0o777;
            assert_eq!((fs::read_to_string(&file).expect("it is there").as_str(), found), (content, mode));
        }
        assert_eq!(names(directory.path()), ["key"]);
    }

    #[test]
    fn a_draft_of_a_killed_process_is_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(".key.new"), "a longer draft of a killed process").expect("a draft");
        write(&directory.path().join("key"), b"whole", 0o600).expect("it is written");
        assert_eq!(fs::read(directory.path().join("key")).expect("it is there"), b"whole");
        assert_eq!(names(directory.path()), ["key"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_content() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("key");
        fs::create_dir(&file).expect("a directory in its place");
        assert!(write(&file, b"new", 0o600).is_err());
        assert!(file.is_dir());
        assert_eq!(names(directory.path()), ["key"]);
        assert!(write(Path::new("/"), b"new", 0o600).is_err());
    }
}
