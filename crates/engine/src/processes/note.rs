//! The note about a sandbox for the next server.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Instance;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// `None`: it is being created.
    pub(super) process: Option<Instance>,
    pub(super) memory_limit: u64,
    /// While it is frozen: the processes that their users had stopped before.
    pub(super) stopped: Option<Vec<u32>>,
}

impl Note {
    /// An absent or malformed note counts as empty.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        match fs::read(path) {
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file by an atomic rename.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let draft = path.with_extension("new");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::rename(draft, path)
    }
}
