//! Cache of the files that a session has read or written, compared by content: a new modification
//! time alone is no change.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::port::{PortError, SessionStore};

/// Up to this size the text is cached too, to show what changed.
const MAX_CACHED_TEXT: usize = 128 * 1024;
/// Number of edits kept per file.
const MAX_EDITS: usize = 20;

/// A file as the session last saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CachedFile {
    pub(crate) path: String,
    pub(crate) sha256: String,
    pub(crate) size: u64,
    /// Ranges of lines that were shown, first and last.
    #[serde(default)]
    pub(crate) ranges: Vec<(u64, u64)>,
    /// What the session's own edits replaced.
    #[serde(default)]
    pub(crate) edits: Vec<PastEdit>,
    /// The text, if it is short enough.
    #[serde(default)]
    pub(crate) text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PastEdit {
    /// Digest of the replaced text.
    pub(crate) old: String,
    pub(crate) line: u64,
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut hasher = Hasher::default();
    hasher.push(bytes);
    hasher.finish()
}

/// Incremental digest.
#[derive(Default)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(crate) fn finish(self) -> String {
        hex::encode(self.0.finalize())
    }
}

impl CachedFile {
    pub(crate) fn new(path: &str, bytes: &[u8], sha256: String, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            sha256,
            size: bytes.len() as u64,
            ranges: Vec::new(),
            edits: Vec::new(),
            text: (text.len() <= MAX_CACHED_TEXT).then(|| text.to_owned()),
        }
    }

    /// Carries over the edits of an earlier version and adds one.
    pub(crate) fn after_edit(mut self, before: Option<&Self>, old: &str, line: usize) -> Self {
        self.edits = before.map(|seen| seen.edits.clone()).unwrap_or_default();
        self.edits.push(PastEdit { old: digest(old.as_bytes()), line: line as u64 });
        if self.edits.len() > MAX_EDITS {
            self.edits.remove(0);
        }
        self
    }

    /// The line at which an edit of the session replaced this text.
    pub(crate) fn replaced_before(&self, old: &str) -> Option<u64> {
        let old = digest(old.as_bytes());
        self.edits.iter().rev().find(|edit| edit.old == old).map(|edit| edit.line)
    }
}

fn key(path: &str) -> String {
    format!("seen/{}", &digest(path.as_bytes())[..32])
}

pub(crate) async fn load(memory: &dyn SessionStore, path: &str) -> Result<Option<CachedFile>, PortError> {
    let note = memory.load(&key(path)).await?;
    // An unreadable value is one that is being written, and counts as absent.
    Ok(note.and_then(|note| serde_json::from_slice(&note).ok()).filter(|seen: &CachedFile| seen.path == path))
}

/// Changes a file and stores its new state concurrently. If the state is stored before the file, at
/// worst the next overwrite is refused; if the change fails, the previous state is stored again.
pub(crate) async fn store_during<T>(
    memory: &dyn SessionStore,
    file: &CachedFile,
    before: Option<&CachedFile>,
    change: impl Future<Output = Result<T, PortError>>,
) -> Result<T, PortError> {
    let (changed, noted) = tokio::join!(change, store(memory, file));
    match (changed, noted) {
        (Ok(changed), Ok(())) => Ok(changed),
        (Ok(_), Err(error)) => Err(error),
        (Err(error), _) => {
            match before {
                Some(before) => store(memory, before).await?,
                None => memory.remove(&key(&file.path)).await?,
            }
            Err(error)
        }
    }
}

pub(crate) async fn store(memory: &dyn SessionStore, seen: &CachedFile) -> Result<(), PortError> {
    let note = serde_json::to_vec(seen).map_err(|error| PortError::Other(error.to_string()))?;
    memory.store(&key(&seen.path), Bytes::from(note)).await
}
