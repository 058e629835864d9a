//! Checkpoints of a workspace's files: archived in the sandbox by `tar`, stored as objects,
//! verified file by file when restored. Any E2B server works; the sandbox needs bash, tar, gzip and
//! coreutils.
//!
//! ```text
//! save      sandbox: tar | gzip ─► archive (one object) ─► manifest (commits) ─► verify ─► prune
//!                     └─ scanned on the way: name, mode, size, digest of every file; secret values
//!                     └─ same files as the newest checkpoint: none is stored
//! prune     manifest (deletes the checkpoint) ─► archive
//! restore   archive ─► sandbox: unpack next to the old files ─► verify every file ─► atomic rename
//!                     └─ any flaw of the checkpoint: try the one before it
//! ```
//!
//! A process may be killed between any two of these steps (`crate::faults` names them). A
//! checkpoint is complete or does not exist, and a tree in a sandbox is the old one or the new one.
//! Saving or pruning a project from more than one process needs a lease; within one process a lock
//! serializes them.
//!
//! Knows a sandbox and a store: nothing of workspaces, their records or leases.
#![forbid(unsafe_code)]

mod archive;
mod browse;
mod checks;
mod digest;
mod entries;
mod excludes;
mod exposed;
pub mod faults;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod git_object;
#[cfg(test)]
mod hostile;
mod key;
mod limits;
mod listing;
mod manifest;
mod occasion;
pub mod port;
mod project_metadata;
mod prune;
mod restore;
mod retention;
mod save;
mod script;
mod spool;
mod store;
mod tar_warnings;
mod upload;
mod verify;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use browse::{BrowseError, DirectoryEntries, FileBeginning};
pub use digest::{Digest, InvalidDigest};
pub use excludes::{Excludes, FolderName, InvalidFolderName};
pub use exposed::ExposedFile;
pub use key::{InvalidProjectId, InvalidStamp, ProjectId, Stamp};
pub use limits::{ArchiveLimits, Excess};
pub use listing::{Condition as CheckpointCondition, ListedCheckpoint};
pub use manifest::{ArchiveFacts, CheckpointManifest, FilePath, ListingFacts, ManifestEntry, ManifestKind};
/// The key of an object in a store.
pub use object_store::path::Path as ObjectKey;
pub use occasion::SaveOccasion;
pub use prune::Pruned;
pub use restore::{Flaw, RestoreError, Restored, Which};
pub use save::{CheckpointOptions, SaveError, SavedCheckpoint};
pub use store::{Condition, ConditionalPuts, ObjectStoreError, Objects, S3Config};
pub use upload::Upload;

use script::ScriptTimeouts;
use tokio::sync::Semaphore;

/// The most manifests that are read concurrently.
const READERS: usize = 3;

/// Attempts, timeouts and retention.
#[derive(Debug, Clone)]
pub struct CheckpointSettings {
    /// Attempts of a save or restore when the store or the connection fails.
    pub attempts: u32,
    /// The delay before the second attempt; doubles for each further one.
    pub backoff: Duration,
    /// How long the sandbox may send no output while it archives, or take for a chunk of input.
    pub silence: Duration,
    /// The timeout of one unpacking, and of a save with all its attempts. A save gets less where
    /// the sandbox's disk is small.
    pub longest: Duration,
    /// How many checkpoints of a project are retained, at least one.
    pub keep: usize,
    /// Younger ones are retained in addition.
    pub keep_for: Duration,
    /// The limits of an archive; [`None`]: derived from the sandbox's disk size.
    pub limits: Option<ArchiveLimits>,
}

impl Default for CheckpointSettings {
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

/// The checkpoints in a store. Cheap to clone; clones share their locks.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    objects: Objects,
    settings: CheckpointSettings,
    locks: Arc<Mutex<HashMap<ProjectId, ProjectLock>>>,
    /// Limits concurrent reads of manifests, each of which takes memory.
    readers: Arc<Semaphore>,
}

type ProjectLock = Arc<tokio::sync::Mutex<()>>;

impl Checkpoints {
    pub fn new(objects: Objects) -> Self {
        Self {
            objects,
            settings: CheckpointSettings::default(),
            locks: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// Replaces the settings.
    #[must_use]
    pub fn with(mut self, settings: CheckpointSettings) -> Self {
        self.settings = settings;
        self
    }

    /// The object store.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Serializes work on a project.
    async fn lock_project(&self, project: &ProjectId) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock();
            // Drops locks that no task holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(project.clone()).or_default())
        };
        lock.lock_owned().await
    }

    fn timeouts(&self) -> ScriptTimeouts {
        self.timeouts_within(self.settings.longest)
    }

    fn timeouts_within(&self, total: Duration) -> ScriptTimeouts {
        ScriptTimeouts { total, silence: self.settings.silence.min(total) }
    }

    /// Waits before attempt `next`, which is at least the second.
    async fn back_off(&self, next: u32) {
        let wait = self.settings.backoff.saturating_mul(1 << (next - 2).min(10));
        // Adds up to half of jitter, so that concurrent failures do not retry together.
        tokio::time::sleep(wait.mul_f64(1.0 + rand::random::<f64>() / 2.0)).await;
    }
}
