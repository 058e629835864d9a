//! One file of a `POST /files`: until it has arrived completely, the existing file stays unchanged.
//!
//! A small file is buffered in memory, a larger one is written as it arrives. The replacement of a
//! non-empty file is written to a draft in the same directory and renamed: a full disk fails the
//! upload and keeps the file. Where no file or an empty one exists, the content is written under
//! the final name, so that watchers see only that name, and a new file is removed if the upload
//! fails.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use http::StatusCode;
use protocol::envd::WrittenFile;

use super::BATCH;
use super::metadata::Metadata;
use super::replace::Draft;
use super::writer::FileWriter;
use crate::http::HttpError;
use crate::users::User;

pub(super) struct IncomingFile {
    path: PathBuf,
    user: User,
    /// The content so far, while it is small.
    gathered: Vec<u8>,
    /// Set once the content is large.
    writing: Option<Writing>,
}

/// How much of the content has arrived at the first write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    All,
    /// The upload may still fail.
    Part,
}

struct Writing {
    writer: FileWriter,
    target: WriteTarget,
}

/// Where the content is written.
enum WriteTarget {
    /// A draft next to the existing file.
    Draft(Draft),
    /// No file existed before.
    New(NewFile),
    /// An empty file, a file whose directory takes no draft, or a special file: written in place.
    Existing,
}

/// A file that this upload created. Dropping it before completion removes the file.
struct NewFile {
    path: PathBuf,
    /// Device and inode: another file may have taken the name meanwhile.
    identity: Option<(u64, u64)>,
}

impl NewFile {
    fn at_path(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }

    fn keep(mut self) {
        self.identity = None;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.identity.is_some() && self.identity == identity(&self.path) {
            // If removal fails, the partial file stays.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl IncomingFile {
    /// Performs no I/O.
    pub(super) fn new(path: PathBuf, user: User) -> Self {
        Self { path, user, gathered: Vec::new(), writing: None }
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> Result<(), HttpError> {
        if self.writing.is_none() && self.gathered.len() + piece.len() <= BATCH {
            self.gathered.extend_from_slice(piece);
            return Ok(());
        }
        let writing = match &mut self.writing {
            Some(writing) => writing,
            None => {
                let mut writing = self.begin(Received::Part)?;
                writing.writer.write(&std::mem::take(&mut self.gathered))?;
                self.writing.insert(writing)
            }
        };
        writing.writer.write(piece)
    }

    /// Completes the file after all content has arrived.
    pub(super) fn finish(mut self, metadata: &Metadata) -> Result<WrittenFile, HttpError> {
        let Writing { writer, target } = match self.writing.take() {
            Some(writing) => writing,
            None => {
                let mut writing = self.begin(Received::All)?;
                writing.writer.write(&self.gathered)?;
                writing
            }
        };
        let written = writer.finish(metadata)?;
        let draft = match target {
            WriteTarget::Draft(draft) => draft,
            WriteTarget::New(file) => {
                file.keep();
                return Ok(written);
            }
            WriteTarget::Existing => return Ok(written),
        };
        draft.replace(&self.user)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(WrittenFile { name, path: self.path.to_string_lossy().into_owned(), ..written })
    }

    fn begin(&self, received: Received) -> Result<Writing, HttpError> {
        // A dangling symlink stays a symlink: its target is created.
        if fs::symlink_metadata(&self.path).is_err() {
            let writer = FileWriter::create(self.path.clone(), &self.user)?;
            return Ok(Writing { writer, target: WriteTarget::New(NewFile::at_path(&self.path)) });
        }
        let is_worth_keeping = |found: fs::Metadata| found.is_file() && (found.len() > 0 || received == Received::Part);
        if fs::metadata(&self.path).is_ok_and(is_worth_keeping) {
            let draft = Draft::for_target(&self.path);
            match FileWriter::create(draft.path.clone(), &self.user) {
                Ok(writer) => return Ok(Writing { writer, target: WriteTarget::Draft(draft) }),
                Err(full) if full.status == StatusCode::INSUFFICIENT_STORAGE => return Err(full),
                // The directories of procfs and sysfs take no drafts.
                Err(_) => {}
            }
        }
        Ok(Writing { writer: FileWriter::create(self.path.clone(), &self.user)?, target: WriteTarget::Existing })
    }
}
