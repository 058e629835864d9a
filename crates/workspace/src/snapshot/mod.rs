//! Snapshots of a workspace's files: made in the sandbox by `tar`, kept as objects, verified file by file when they come
//! back. Any E2B server will do; the sandbox needs bash, tar, gzip and the usual small programs.
//!
//! ```text
//! save      sandbox: tar | gzip ──► archive (one object) ──► manifest (the snapshot exists) ──► looked at ──► prune
//!                                    └─ read on the way: name, mode, size, digest of every file; values that must not be in it
//!                                    └─ the same files as in the newest snapshot: no other one is made
//! prune     manifest (it exists no more) ──► archive
//! restore   archive ──► sandbox: unpacked beside the old files ──► every file verified ──► swapped by renaming
//!                        └─ anything wrong with the snapshot: the one before it
//! ```
//!
//! A process may be killed between any two of these steps (`crate::faults` has their names): a snapshot is whole or does not
//! exist, and a tree in a sandbox is the old one or the new one. Who saves or prunes a project from more than one process
//! needs a lease on it; within one process they wait for each other.

mod archive;
mod beside;
mod browse;
mod checked;
mod complaint;
mod digest;
mod entries;
#[cfg(test)]
mod hostile;
mod key;
mod left_out;
mod limits;
mod listing;
mod manifest;
mod occasion;
mod prune;
mod restore;
mod retention;
mod save;
mod script;
mod spool;
mod store;
mod upload;
mod values;
mod verify;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use browse::{BrowseError, DirectoryEntries, FileBeginning};
pub use digest::{Digest, InvalidDigest};
pub use key::{InvalidProjectId, InvalidStamp, ProjectId, Stamp};
pub use left_out::{FolderName, InvalidFolderName, LeftOut};
pub use limits::{ArchiveLimits, Excess};
pub use listing::{Condition as SnapshotCondition, Listed};
pub use manifest::{ArchiveFacts, Entry, FilePath, Kind, ListingFacts, Manifest};
/// The name of an object in a store.
pub use object_store::path::Path as ObjectKey;
pub use occasion::Occasion;
pub use prune::Pruned;
pub use restore::{Flaw, RestoreError, Restored, Which};
pub use save::{SaveError, Saved, SnapshotOptions};
pub use store::{Condition, ConditionalPuts, Objects, S3Config, StoreError};
pub use upload::Upload;
pub use values::{EnvValues, ExposedFile};

use script::Patience;
use tokio::sync::Semaphore;

/// Manifests that are read at once; further readers wait.
const READERS: usize = 3;

/// How long and how often things are tried, and how many snapshots are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How often a save or a restore is tried when the store or the connection is in trouble.
    pub attempts: u32,
    /// Before the second attempt; twice as long before each further one.
    pub backoff: Duration,
    /// How long the sandbox may say nothing while it archives, or take for a piece of input.
    pub silence: Duration,
    /// How long one archiving or unpacking may take.
    pub longest: Duration,
    /// How many snapshots of a project are kept. At least one is.
    pub keep: usize,
    /// Younger ones are kept besides.
    pub keep_for: Duration,
    /// What an archive may be at most; absent: as the sandbox's disk allows.
    pub limits: Option<ArchiveLimits>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            attempts: 3,
            backoff: Duration::from_millis(500),
            silence: Duration::from_secs(120),
            longest: Duration::from_secs(3600),
            keep: 5,
            keep_for: Duration::ZERO,
            limits: None,
        }
    }
}

/// The snapshots in a store. Cheap to clone; clones wait for each other where they must.
#[derive(Debug, Clone)]
pub struct Snapshots {
    objects: Objects,
    settings: Settings,
    turns: Arc<Mutex<HashMap<ProjectId, Turn>>>,
    /// For manifests that are read: each takes some memory.
    readers: Arc<Semaphore>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

impl Snapshots {
    pub fn new(objects: Objects) -> Self {
        Self {
            objects,
            settings: Settings::default(),
            turns: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// The same snapshots, with other settings.
    #[must_use]
    pub fn with(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where they are kept.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// One at a time works on a project.
    async fn turn(&self, project: &ProjectId) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            // Forget those whom nobody has or waits for.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(project.clone()).or_default())
        };
        turn.lock_owned().await
    }

    fn patience(&self) -> Patience {
        Patience { whole: self.settings.longest, silence: self.settings.silence }
    }

    /// Before attempt `next`, which is at least the second.
    async fn back_off(&self, next: u32) {
        let wait = self.settings.backoff.saturating_mul(1 << (next - 2).min(10));
        // Up to half as long again, so that many who met the same trouble do not come back together.
        tokio::time::sleep(wait.mul_f64(1.0 + rand::random::<f64>() / 2.0)).await;
    }
}
