//! One file of a `POST /files` on its way to its place: until all of it has arrived, the file that is there stays as it is.
//!
//! A small file is gathered in memory and then written in place, as E2B's daemon does: hard links, mode and watchers see a
//! write. A larger one is written to a draft beside its place, which then takes the name of the file before.

use std::fs;
use std::path::PathBuf;

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

struct Writing {
    writer: FileWriter,
    /// None: what is at the path has no neighbours, or is no plain file; it is written as it is.
    draft: Option<Draft>,
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
                let mut writing = self.begin()?;
                writing.writer.write(&std::mem::take(&mut self.gathered))?;
                self.writing.insert(writing)
            }
        };
        writing.writer.write(piece)
    }

    /// All of it has arrived.
    pub(super) fn finish(self, metadata: &Metadata) -> Result<WrittenFile, HttpError> {
        let Some(Writing { writer, draft }) = self.writing else {
            let mut writer = FileWriter::create(self.path, &self.user)?;
            writer.write(&self.gathered)?;
            return writer.finish(metadata);
        };
        let written = writer.finish(metadata)?;
        let Some(draft) = draft else { return Ok(written) };
        draft.replace(&self.user)?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(WrittenFile { name, path: self.path.to_string_lossy().into_owned(), ..written })
    }

    fn begin(&self) -> Result<Writing, HttpError> {
        let replaceable = match fs::metadata(&self.path) {
            Ok(found) => found.is_file(),
            // A link that leads nowhere stays one: what it names is made.
            Err(_) => fs::symlink_metadata(&self.path).is_err(),
        };
        if replaceable {
            let draft = Draft::beside(&self.path);
            match FileWriter::create(draft.path.clone(), &self.user) {
                Ok(writer) => return Ok(Writing { writer, draft: Some(draft) }),
                Err(full) if full.status == StatusCode::INSUFFICIENT_STORAGE => return Err(full),
                // Files of the kernel have no neighbours.
                Err(_) => {}
            }
        }
        Ok(Writing { writer: FileWriter::create(self.path.clone(), &self.user)?, draft: None })
    }
}
