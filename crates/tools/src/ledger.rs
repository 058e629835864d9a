//! What a session has seen of files: by content, not by time, so that a touched file is not a changed one.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::port::{Memory, PortError};

/// Up to this size the content is remembered too, to show what changed.
const REMEMBERED: usize = 128 * 1024;
/// How many edits are remembered for each file.
const EDITS: usize = 20;

/// A file as the session last saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) sha256: String,
    pub(crate) size: u64,
    /// Lines that were shown, first and last.
    #[serde(default)]
    pub(crate) ranges: Vec<(u64, u64)>,
    /// What the session's own edits replaced.
    #[serde(default)]
    pub(crate) edits: Vec<PastEdit>,
    /// The text, when it was short enough.
    #[serde(default)]
    pub(crate) text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PastEdit {
    /// Digest of what was replaced.
    pub(crate) old: String,
    pub(crate) line: u64,
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut hasher = Hasher::default();
    hasher.push(bytes);
    hasher.finish()
}

/// The digest of what comes in pieces.
#[derive(Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(crate) fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Seen {
    pub(crate) fn new(path: &str, bytes: &[u8], sha256: String, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            sha256,
            size: bytes.len() as u64,
            ranges: Vec::new(),
            edits: Vec::new(),
            text: (text.len() <= REMEMBERED).then(|| text.to_owned()),
        }
    }

    /// With the edits of an earlier sight and one more.
    pub(crate) fn after_edit(mut self, before: Option<&Self>, old: &str, line: usize) -> Self {
        self.edits = before.map(|seen| seen.edits.clone()).unwrap_or_default();
        self.edits.push(PastEdit { old: digest(old.as_bytes()), line: line as u64 });
        if self.edits.len() > EDITS {
            self.edits.remove(0);
        }
        self
    }

    /// The line at which this text was replaced by an edit of the session.
    pub(crate) fn replaced_before(&self, old: &str) -> Option<u64> {
        let old = digest(old.as_bytes());
        self.edits.iter().rev().find(|edit| edit.old == old).map(|edit| edit.line)
    }
}

fn key(path: &str) -> String {
    format!("seen/{}", &digest(path.as_bytes())[..32])
}

pub(crate) async fn recall(memory: &dyn Memory, path: &str) -> Result<Option<Seen>, PortError> {
    let note = memory.recall(&key(path)).await?;
    // A note that cannot be read is one that was being written: as good as none.
    Ok(note.and_then(|note| serde_json::from_slice(&note).ok()).filter(|seen: &Seen| seen.path == path))
}

/// Changes a file and notes what it is then, both at the same time. A note that is ahead of its file only makes the next
/// overwrite ask; when the change fails, what was known before is noted again.
pub(crate) async fn with_note<T>(
    memory: &dyn Memory,
    note: &Seen,
    before: Option<&Seen>,
    change: impl Future<Output = Result<T, PortError>>,
) -> Result<T, PortError> {
    let (changed, noted) = tokio::join!(change, remember(memory, note));
    match (changed, noted) {
        (Ok(changed), Ok(())) => Ok(changed),
        (Ok(_), Err(error)) => Err(error),
        (Err(error), _) => {
            match before {
                Some(before) => remember(memory, before).await?,
                None => memory.forget(&key(&note.path)).await?,
            }
            Err(error)
        }
    }
}

pub(crate) async fn remember(memory: &dyn Memory, seen: &Seen) -> Result<(), PortError> {
    let note = serde_json::to_vec(seen).map_err(|error| PortError::Other(error.to_string()))?;
    memory.remember(&key(&seen.path), Bytes::from(note)).await
}
