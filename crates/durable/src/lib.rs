//! Atomic, durable replacement of small files, and what to do about a disk that refuses changes.
//!
//! Invariant: once a function here has returned `Ok`, the block device holds the new content under
//! its name. When the process or the machine stops earlier, the file holds the old or the new
//! content, never a part. Two processes that write the same path share one draft: callers hold a
//! lock.

#![forbid(unsafe_code)]

mod filesystem;
mod reserve;

pub use filesystem::{
    FreeSpace, Unwritable, describe_full, describe_io_error, explain, explain_reserve, free_space, is_exhausted,
    mount_point,
};
pub use reserve::{RESERVE_BYTES, writable_bytes};

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Replaces the content of `path`: writes a draft in the same directory, syncs it, renames it and
/// syncs the directory.
///
/// The file gets exactly the permission bits `mode`, whatever the umask.
///
/// # Errors
/// The first failed system call; `path` keeps its old content unless the final directory sync
/// failed.
pub fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let draft = draft_path(path)?;
    write_draft(&draft, content, mode).and_then(|()| rename(&draft, path)).inspect_err(|_| {
        // The write error is the one to report; the next write truncates the draft.
        let _ = fs::remove_file(&draft);
    })
}

/// Renames a file or directory whose content is already synced, and syncs the target directory.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(parent_directory(to))
}

/// Syncs the entries of a directory: names that were added, replaced or removed.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn write_draft(draft: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(draft)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

fn draft_path(path: &Path) -> io::Result<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".new");
    Ok(path.with_file_name(name))
}

fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
    }

    #[test]
    fn write_replaces_content_and_mode_and_leaves_no_draft() {
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
