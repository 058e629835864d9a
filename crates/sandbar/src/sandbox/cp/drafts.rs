//! Files in a sandbox that are not complete yet, under names of their own.

use super::path::split;
use sdk::Files;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest part of a file's name that its draft's name repeats: names have 255 bytes at most.
const REPEATED: usize = 200;
/// How long after the last byte was sent a draft may still appear.
const LATEST: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(100);

/// The drafts that exist now, or may come to.
#[derive(Default)]
pub(super) struct Drafts {
    paths: Mutex<BTreeMap<String, Word>>,
}

/// What the sandbox has said of a draft.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    /// It may be about to make it.
    None,
    /// It has answered: if the draft is not there now, it never will be.
    Given,
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
        self.paths().insert(draft.clone(), Word::None);
        draft
    }

    /// The sandbox has answered that it does not take it.
    pub(super) fn refused(&self, draft: &str) {
        self.paths().insert(draft.to_owned(), Word::Given);
    }

    /// It has its final name.
    pub(super) fn done(&self, draft: &str) {
        self.paths().remove(draft);
    }

    fn paths(&self) -> MutexGuard<'_, BTreeMap<String, Word>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what is left. What cannot be removed is named.
    ///
    /// A sandbox may be about to make a file of what it was sent last, so one that is not there is looked for again.
    pub(super) async fn remove_all(&self, files: &Files<'_>) {
        let mut left = std::mem::take(&mut *self.paths());
        let end = Instant::now() + LATEST;
        loop {
            let is_last = Instant::now() >= end;
            let mut absent = BTreeMap::new();
            for (draft, word) in left {
                let removed = match files.exists(&draft).await {
                    Ok(true) => files.remove(&draft).await,
                    Ok(false) => {
                        absent.insert(draft, word);
                        continue;
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = removed {
                    eprintln!("sandbar: an incomplete file is left at {draft}: {error}");
                }
            }
            absent.retain(|_, word| *word == Word::None);
            if absent.is_empty() || is_last {
                return;
            }
            left = absent;
            tokio::time::sleep(AGAIN).await;
        }
    }
}
