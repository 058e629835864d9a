//! Incomplete files in a sandbox, under temporary names.

use super::path::split;
use parking_lot::{Mutex, MutexGuard};
use sdk::Files;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Limit of the part of a file's name that its draft's name repeats: names have at most 255 bytes.
const MAX_REPEATED_BYTES: usize = 200;
/// How long after the last byte was sent the sandbox may still create a draft.
const APPEAR_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The drafts that exist, or that the sandbox may still create.
#[derive(Default)]
pub(super) struct Drafts {
    paths: Mutex<BTreeMap<String, DraftState>>,
}

/// Whether the sandbox has answered the upload of a draft.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DraftState {
    /// No answer yet: the sandbox may still create the draft.
    Pending,
    /// The sandbox has answered, and creates nothing any more.
    Answered,
}

impl Drafts {
    /// Adds a draft in the directory of `path`, so that the rename stays within a file system.
    pub(super) fn begin(&self, path: &str) -> String {
        let (directory, name) = split(path);
        let mut end = name.len().min(MAX_REPEATED_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let draft = format!("{directory}/.{}.{:08x}.part", &name[..end], rand::random::<u32>());
        self.paths().insert(draft.clone(), DraftState::Pending);
        draft
    }

    /// The sandbox has refused the upload.
    pub(super) fn refused(&self, draft: &str) {
        self.paths().insert(draft.to_owned(), DraftState::Answered);
    }

    /// The draft was renamed to its final name.
    pub(super) fn done(&self, draft: &str) {
        self.paths().remove(draft);
    }

    fn paths(&self) -> MutexGuard<'_, BTreeMap<String, DraftState>> {
        self.paths.lock()
    }

    /// Removes all drafts, and prints those that cannot be removed.
    ///
    /// A sandbox may create a file from the bytes that it was sent last, so that an absent draft is
    /// looked for again until [`APPEAR_TIMEOUT`].
    pub(super) async fn remove_all(&self, files: &Files<'_>) {
        let mut left = std::mem::take(&mut *self.paths());
        let end = Instant::now() + APPEAR_TIMEOUT;
        loop {
            let is_last = Instant::now() >= end;
            let mut absent = BTreeMap::new();
            for (draft, state) in left {
                let removed = match files.exists(&draft).await {
                    Ok(true) => files.remove(&draft).await,
                    Ok(false) => {
                        absent.insert(draft, state);
                        continue;
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = removed {
                    eprintln!("sandbar: an incomplete file is left at {draft}: {error}");
                }
            }
            absent.retain(|_, state| *state == DraftState::Pending);
            if absent.is_empty() || is_last {
                return;
            }
            left = absent;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
