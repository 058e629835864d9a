//! Files in a sandbox that are not complete yet, under names of their own.

use super::path::split;
use sdk::Files;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The longest part of a file's name that its draft's name repeats: names have 255 bytes at most.
const REPEATED: usize = 200;

/// The drafts that exist now.
#[derive(Default)]
pub(super) struct Drafts {
    paths: Mutex<BTreeSet<String>>,
}

impl Drafts {
    /// A name in the directory of `path`, so that a move to it stays within a file system.
    pub(super) fn begin(&self, path: &str) -> String {
        let (directory, name) = split(path);
        let mut end = name.len().min(REPEATED);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let draft = format!("{directory}/.{}.{:08x}.part", &name[..end], rand::random::<u32>());
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).insert(draft.clone());
        draft
    }

    /// It has its final name.
    pub(super) fn done(&self, draft: &str) {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).remove(draft);
    }

    /// Removes what is left. What cannot be removed is named.
    pub(super) async fn remove_all(&self, files: &Files<'_>) {
        let left = std::mem::take(&mut *self.paths.lock().unwrap_or_else(PoisonError::into_inner));
        for draft in left {
            if let Err(error) = files.remove(&draft).await {
                eprintln!("sandbar: an incomplete file is left at {draft}: {error}");
            }
        }
    }
}
