//! `PUT /files`: replaces a file atomically, and only if its content is unchanged since the client
//! read it. A Sandbar extension: with `POST` alone an atomic replacement takes five requests and a
//! lock.
//!
//! `If-None-Match: *` requires that no file exists; `If-Match: "<sha256>"` requires that content.
//! Otherwise the response is 412 and nothing has changed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use rustix::fs::{Gid, Mode, Uid};
use sha2::{Digest, Sha256};

use super::BATCH;
use super::writer::{FileWriter, not_regular, write_error};
use crate::http::HttpError;
use crate::users::User;

/// Serializes check and replacement (compare-and-swap).
static REPLACE_LOCK: Mutex<()> = Mutex::new(());

/// The precondition of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    Absent,
    /// A file with this SHA-256.
    Content(String),
}

impl Condition {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, HttpError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        match (text(IF_NONE_MATCH), text(IF_MATCH)) {
            (Some("*"), None) => Ok(Self::Absent),
            (None, Some(tag)) => {
                let digest = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
                let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                is_digest.then(|| Self::Content(digest.to_ascii_lowercase())).ok_or_else(|| {
                    HttpError::bad_request("If-Match must be the quoted SHA-256 of the file that is replaced")
                })
            }
            _ => Err(HttpError::bad_request("a replacement needs If-Match: \"<sha256>\" or If-None-Match: *")),
        }
    }
}

/// A draft next to its target. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) path: PathBuf,
    /// The resolved target: a symlink stays a symlink.
    target: PathBuf,
    placed: bool,
}

impl Draft {
    pub(super) fn for_target(path: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = OsString::from(".");
        // A long name leaves no space for the suffix.
        name.push(target.file_name().filter(|name| name.len() <= 200).unwrap_or_default());
        name.push(format!(".agtmp-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        Self { path: target.with_file_name(name), target, placed: false }
    }

    /// Renames the draft over the target, with mode and owner of the replaced file.
    pub(super) fn commit(mut self, condition: &Condition) -> Result<PathBuf, HttpError> {
        let failed = |error: &io::Error| write_error(&self.target, error);
        let _turn = REPLACE_LOCK.lock();
        let before = open(&self.target)?;
        match (&before, condition) {
            (None, Condition::Absent) => {}
            (Some((file, _)), Condition::Content(wanted)) => {
                let found = digest(file).map_err(|error| failed(&error))?;
                if found != *wanted {
                    return Err(changed("the file has another content"));
                }
            }
            (Some(_), Condition::Absent) => return Err(changed("there is a file already")),
            (None, Condition::Content(_)) => return Err(changed("the file is gone")),
        }
        if let Some((_, meta)) = &before {
            let draft = File::open(&self.path).map_err(|error| failed(&error))?;
            let owner = (Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())));
            // The owner first: changing it may clear mode bits.
            rustix::fs::fchown(&draft, owner.0, owner.1)
                .and_then(|()| rustix::fs::fchmod(&draft, Mode::from_raw_mode(meta.mode() & 0o7777)))
                .map_err(|errno| failed(&errno.into()))?;
        }
        match fs::rename(&self.path, &self.target) {
            Ok(()) => self.placed = true,
            // A mount point cannot be renamed over, only written.
            Err(error) if before.is_some() && error.raw_os_error() == Some(libc::EBUSY) => {
                let copy = fs::copy(&self.path, &self.target);
                copy.map_err(|error| failed(&error))?;
            }
            Err(error) => return Err(failed(&error)),
        }
        Ok(self.target.clone())
    }
}

impl Draft {
    /// Renames the draft over the target unconditionally, with the mode of the replaced file and
    /// `user` as owner.
    pub(super) fn replace(mut self, user: &User) -> Result<(), HttpError> {
        let failed = |error: &io::Error| write_error(&self.target, error);
        let before = fs::metadata(&self.target).ok();
        // Hard links refer to the same inode, so it is written in place.
        if before.as_ref().is_some_and(|before| before.nlink() > 1) {
            return self.copy_in_place(user);
        }
        let draft = File::options().write(true).open(&self.path).map_err(|error| failed(&error))?;
        if let Some(before) = &before {
            let mode = Mode::from_raw_mode(before.mode() & 0o7777);
            rustix::fs::fchmod(&draft, mode).map_err(|errno| failed(&errno.into()))?;
        }
        match fs::rename(&self.path, &self.target) {
            Ok(()) => self.placed = true,
            // A mount point cannot be renamed over, only written.
            Err(error) if before.is_some() && error.raw_os_error() == Some(libc::EBUSY) => {
                return self.copy_in_place(user);
            }
            Err(error) => return Err(failed(&error)),
        }
        // Watchers of the directory expect a write event for this name. The size stays the same.
        let size = draft.metadata().map_err(|error| failed(&error))?.len();
        draft.set_len(size).map_err(|error| failed(&error))
    }

    fn copy_in_place(&self, user: &User) -> Result<(), HttpError> {
        let mut content = File::open(&self.path).map_err(|error| write_error(&self.path, &error))?;
        FileWriter::create(self.target.clone(), user)?.copy_from(&mut content)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.placed {
            // The draft may not exist.
            let _gone = fs::remove_file(&self.path);
        }
    }
}

fn changed(how: &str) -> HttpError {
    HttpError::new(StatusCode::PRECONDITION_FAILED, how)
}

fn open(path: &Path) -> Result<Option<(File, fs::Metadata)>, HttpError> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let opened = options.open(path).and_then(|file| file.metadata().map(|meta| (file, meta)));
    match opened {
        Ok((_, meta)) if meta.is_dir() => {
            Err(HttpError::bad_request(format!("path is a directory: {}", path.display())))
        }
        Ok((_, meta)) if !meta.is_file() => Err(not_regular(path)),
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(write_error(path, &error)),
    }
}

fn digest(mut file: &File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BATCH];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    Ok(hex::encode(hasher.finalize()))
}
