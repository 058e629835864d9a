//! One file of a `POST /files` on its way to its place: until all of it has arrived, the file that is
//! there stays as it is.
//!
//! A small file is gathered in memory, a larger one is written as it arrives. What replaces a file
//! with content is written to a draft beside it, which then takes its name: a disk without room for
//! it costs the upload and not the file. Where there is no file before, or an empty one, it is
//! written under its own name, so that watchers see that name alone, and what is new is removed if
//! the upload fails.

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
    /// All of it so far, while it is small.
    gathered: Vec<u8>,
    /// Once it is large.
    writing: Option<Writing>,
}

/// How much of the content is there when it is first written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrived {
    All,
    /// The upload may break off.
    Part,
}

struct Writing {
    writer: FileWriter,
    place: Place,
}

/// Where the content goes.
enum Place {
    /// Beside the file before.
    Draft(Draft),
    /// There was no file before.
    New(NewFile),
    /// What is at the path is empty, has no neighbours, or is no plain file: it is written as it is.
    Existing,
}

/// A file that this upload created. Dropped before all of it has arrived, it is removed.
struct NewFile {
    path: PathBuf,
    /// Device and inode: another file may have taken the name meanwhile.
    identity: Option<(u64, u64)>,
}

impl NewFile {
    fn created_at(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }

    fn keep(mut self) {
        self.identity = None;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.identity.is_some() && self.identity == identity(&self.path) {
            // What cannot be removed stays as a part, as it would without this.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

impl IncomingFile {
    /// Touches nothing yet.
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
                let mut writing = self.begin(Arrived::Part)?;
                writing.writer.write(&std::mem::take(&mut self.gathered))?;
                self.writing.insert(writing)
            }
        };
        writing.writer.write(piece)
    }

    /// All of it has arrived.
    pub(super) fn finish(mut self, metadata: &Metadata) -> Result<WrittenFile, HttpError> {
        let Writing { writer, place } = match self.writing.take() {
            Some(writing) => writing,
            None => {
                let mut writing = self.begin(Arrived::All)?;
                writing.writer.write(&self.gathered)?;
                writing
            }
        };
        let written = writer.finish(metadata)?;
        let draft = match place {
            Place::Draft(draft) => draft,
            Place::New(file) => {
                file.keep();
                return Ok(written);
            }
            Place::Existing => return Ok(written),
        };
        draft.replace(&self.user)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(WrittenFile { name, path: self.path.to_string_lossy().into_owned(), ..written })
    }

    fn begin(&self, arrived: Arrived) -> Result<Writing, HttpError> {
        // A link that leads nowhere stays one: what it names is made.
        if fs::symlink_metadata(&self.path).is_err() {
            let writer = FileWriter::create(self.path.clone(), &self.user)?;
            return Ok(Writing { writer, place: Place::New(NewFile::created_at(&self.path)) });
        }
        let is_worth_keeping = |found: fs::Metadata| found.is_file() && (found.len() > 0 || arrived == Arrived::Part);
        if fs::metadata(&self.path).is_ok_and(is_worth_keeping) {
            let draft = Draft::beside(&self.path);
            match FileWriter::create(draft.path.clone(), &self.user) {
                Ok(writer) => return Ok(Writing { writer, place: Place::Draft(draft) }),
                Err(full) if full.status == StatusCode::INSUFFICIENT_STORAGE => return Err(full),
                // Files of the kernel have no neighbours.
                Err(_) => {}
            }
        }
        Ok(Writing { writer: FileWriter::create(self.path.clone(), &self.user)?, place: Place::Existing })
    }
}
