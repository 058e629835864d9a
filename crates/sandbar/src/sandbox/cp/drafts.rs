//! Files in a sandbox that are not complete yet, under names of their own.

use super::path::split;
use sdk::Files;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The longest part of a file's name that its draft's name repeats: names have 255 bytes at most.
const REPEATED: usize = 200;
/// How long after the last byte was sent a draft may still appear.
const LATEST: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(100);

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
    ///
    /// A sandbox may be about to make a file of what it was sent last, so one that is not there is looked for again.
    pub(super) async fn remove_all(&self, files: &Files<'_>) {
        let mut left = std::mem::take(&mut *self.paths.lock().unwrap_or_else(PoisonError::into_inner));
        let end = Instant::now() + LATEST;
        loop {
            let is_last = Instant::now() >= end;
            let mut absent = BTreeSet::new();
            for draft in left {
                let removed = match files.exists(&draft).await {
                    Ok(true) => files.remove(&draft).await,
                    Ok(false) => {
                        absent.insert(draft);
                        continue;
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = removed {
                    eprintln!("sandbar: an incomplete file is left at {draft}: {error}");
                }
            }
            if absent.is_empty() || is_last {
                return;
            }
            left = absent;
            tokio::time::sleep(AGAIN).await;
        }
    }
}
