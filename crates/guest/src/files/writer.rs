//! Writes one file in the event order that watchers expect: create, chown, write.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use http::StatusCode;
use protocol::envd::{FileKind, WrittenFile};
use rustix::fs::{Gid, Uid};

use super::BATCH;
use super::metadata::{self, Metadata};
use crate::http::HttpError;
use crate::users::User;

/// Chunks of at least this size are written directly; smaller ones are buffered, so that a small
/// file is one write.
const LARGE: usize = 64 * 1024;

pub(super) struct FileWriter {
    path: PathBuf,
    file: fs::File,
    gathered: Vec<u8>,
}

impl FileWriter {
    /// Creates or truncates the file, creates missing directories, and sets the owner to `user`.
    pub(super) fn create(path: PathBuf, user: &User) -> Result<Self, HttpError> {
        if let Some(parent) = path.parent() {
            make_directories(parent, user).map_err(|error| write_error(&path, &error))?;
        }
        let mut options = fs::OpenOptions::new();
        // Non-blocking, because opening a FIFO would wait for its reader.
        options.write(true).create(true).truncate(true).mode(0o666);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(&path).map_err(|error| match error.raw_os_error() {
            Some(libc::EISDIR) => HttpError::bad_request(format!("path is a directory: {}", path.display())),
            Some(libc::ENXIO) => not_regular(&path),
            _ => write_error(&path, &error),
        })?;
        let kind = file.metadata().map_err(|error| write_error(&path, &error))?;
        if !kind.is_file() {
            return Err(not_regular(&path));
        }
        chown_to(&file, user).map_err(|error| write_error(&path, &error))?;
        Ok(Self { path, file, gathered: Vec::new() })
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> Result<(), HttpError> {
        if self.gathered.is_empty() && piece.len() >= LARGE {
            return self.file.write_all(piece).map_err(|error| write_error(&self.path, &error));
        }
        self.gathered.extend_from_slice(piece);
        if self.gathered.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Copies all of `source` inside the kernel where the file system supports it.
    pub(super) fn copy_from(&mut self, source: &mut fs::File) -> Result<(), HttpError> {
        self.flush()?;
        io::copy(source, &mut self.file).map(drop).map_err(|error| write_error(&self.path, &error))
    }

    pub(super) fn finish(mut self, wanted: &Metadata) -> Result<WrittenFile, HttpError> {
        self.flush()?;
        let stored =
            metadata::replace(&self.file, wanted).map_err(|errno| write_error(&self.path, &io::Error::from(errno)))?;
        Ok(WrittenFile {
            name: self.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: self.path.to_string_lossy().into_owned(),
            kind: FileKind::File,
            metadata: stored,
        })
    }

    fn flush(&mut self) -> Result<(), HttpError> {
        if !self.gathered.is_empty() {
            self.file.write_all(&self.gathered).map_err(|error| write_error(&self.path, &error))?;
            self.gathered.clear();
        }
        Ok(())
    }
}

fn chown_to(file: &fs::File, user: &User) -> io::Result<()> {
    Ok(rustix::fs::fchown(file, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?)
}

/// Creates the directory and its missing parents, each owned by `user`. Existing ones stay
/// unchanged.
pub(crate) fn make_directories(path: &Path, user: &User) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = Some(path);
    while let Some(directory) = at {
        match fs::metadata(directory) {
            Ok(meta) if meta.is_dir() => break,
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(directory),
            Err(error) => return Err(error),
        }
        at = directory.parent();
    }
    for directory in missing.into_iter().rev() {
        match fs::DirBuilder::new().mode(0o755).create(directory) {
            Ok(()) => std::os::unix::fs::lchown(directory, Some(user.uid), Some(user.gid))?,
            // Another process created it concurrently.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn not_regular(path: &Path) -> HttpError {
    HttpError::bad_request(format!("path is not a regular file: {}", path.display()))
}

pub(super) fn write_error(path: &Path, error: &io::Error) -> HttpError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            HttpError::new(StatusCode::INSUFFICIENT_STORAGE, "not enough disk space available")
        }
        Some(libc::ENAMETOOLONG | libc::ELOOP) => HttpError::bad_request(format!("{}: {error}", path.display())),
        _ => HttpError::internal(format!("error writing '{}': {error}", path.display())),
    }
}
