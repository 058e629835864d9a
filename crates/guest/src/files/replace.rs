//! `PUT /files`: a file becomes another whole or not at all, and only while it still is what the client saw. Ours, not
//! E2B's: with `POST` alone an atomic replacement takes five requests and a lock.
//!
//! `If-None-Match: *` wants no file there; `If-Match: "<sha256>"` wants that content. Anything else there is answered
//! with 412, and nothing has changed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use rustix::fs::{Gid, Mode, Uid};
use sha2::{Digest, Sha256};

use super::BATCH;
use super::writer::{FileWriter, not_regular, write_error};
use crate::http::HttpError;
use crate::users::User;

/// Between looking at a file and replacing it nobody else replaces one.
static TURN: Mutex<()> = Mutex::new(());

/// What must be at a path for it to be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Condition {
    Absent,
    /// A file with this digest.
    Content(String),
}

impl Condition {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, HttpError> {
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

/// The new content beside the place it is for. Dropped, it disappears.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) path: PathBuf,
    /// Where links lead to: a link stays one.
    target: PathBuf,
    placed: bool,
}

impl Draft {
    pub(super) fn beside(path: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = OsString::from(".");
        // A name that is long already has no room for more.
        name.push(target.file_name().filter(|name| name.len() <= 200).unwrap_or_default());
        name.push(format!(".agtmp-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        Self { path: target.with_file_name(name), target, placed: false }
    }

    /// Puts the draft in its place, with mode and owner of the file before.
    pub(super) fn place(mut self, condition: &Condition) -> Result<PathBuf, HttpError> {
        let failed = |error: &io::Error| write_error(&self.target, error);
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
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
            // The owner first: a change of it may take bits of the mode away.
            rustix::fs::fchown(&draft, owner.0, owner.1)
                .and_then(|()| rustix::fs::fchmod(&draft, Mode::from_raw_mode(meta.mode() & 0o7777)))
                .map_err(|errno| failed(&errno.into()))?;
        }
        match fs::rename(&self.path, &self.target) {
            Ok(()) => self.placed = true,
            // A file that is a mount cannot be renamed over, only written.
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
    /// Puts the draft in its place whatever is there, with the mode of the file before; the file belongs to `user`.
    pub(super) fn replace(mut self, user: &User) -> Result<(), HttpError> {
        let failed = |error: &io::Error| write_error(&self.target, error);
        let before = fs::metadata(&self.target).ok();
        // Other names of the file mean this one, too.
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
            // A file that is a mount cannot be renamed over, only written.
            Err(error) if before.is_some() && error.raw_os_error() == Some(libc::EBUSY) => {
                return self.copy_in_place(user);
            }
            Err(error) => return Err(failed(&error)),
        }
        // Who watches the directory waits for a write to this name. The size does not change.
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
            // It may never have been made.
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
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
