//! Lists checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures::StreamExt as _;
use jiff::Timestamp;
use serde::Serialize;

use crate::Checkpoints;
use crate::archive;
use crate::checks::CheckRecord;
use crate::digest::Digest;
use crate::entries::{self, Entries, Wanted};
use crate::key::{self, ObjectPart, ProjectId, Stamp};
use crate::manifest::{CheckpointManifest, FilePath, ManifestEntry, is_environment_file};
use crate::occasion::SaveOccasion;
use crate::retention::{Generation, TreeSize};
use crate::spool::Spool;
use crate::store::ObjectStoreError;

/// A stored checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedCheckpoint {
    pub stamp: Stamp,
    /// The archive's key in the store.
    pub key: String,
    pub created_at: Timestamp,
    /// When a save last found these files: a save that finds no change stores no other checkpoint.
    pub saved_at: Timestamp,
    pub occasion: SaveOccasion,
    /// Files with the workspace's variables in plain text, written by sessions of older programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment_files: Vec<FilePath>,
    pub condition: Condition,
}

/// The condition of a checkpoint, as known without reading its archive again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The manifest is readable and the archive has its full length. `verified` when the whole
    /// archive was read since it was stored, and matched.
    Whole { files: u64, bytes: u64, sha256: Digest, verified: bool },
    /// It cannot be restored.
    Damaged { reason: String },
}

/// The objects of a project, by role.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    manifests: BTreeSet<Stamp>,
    archives: BTreeMap<Stamp, StoredObject>,
}

/// An object in the store.
#[derive(Debug, Clone)]
pub(crate) struct StoredObject {
    pub(crate) size: u64,
    /// The ETag: changes with the content.
    pub(crate) tag: Option<String>,
}

impl Generations {
    /// The stamps of checkpoints that exist, oldest first.
    pub(crate) fn committed(&self) -> impl DoubleEndedIterator<Item = Stamp> + Clone {
        self.manifests.iter().copied()
    }

    /// The stamps of archives without a manifest, oldest first.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = Stamp> {
        self.archives.keys().copied().filter(|stamp| !self.manifests.contains(stamp))
    }

    pub(crate) fn archive_size(&self, stamp: Stamp) -> Option<u64> {
        self.archive(stamp).map(|archive| archive.size)
    }

    pub(crate) fn archive(&self, stamp: Stamp) -> Option<&StoredObject> {
        self.archives.get(&stamp)
    }

    /// The last used stamp, also of an interrupted save.
    pub(crate) fn newest(&self) -> Option<Stamp> {
        self.manifests.last().max(self.archives.keys().last()).copied()
    }
}

/// A checkpoint as its manifest and verification result describe it.
pub(crate) struct Described {
    pub(crate) generation: Generation,
    environment_files: Vec<FilePath>,
    pub(crate) condition: Condition,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error(transparent)]
    Store(#[from] ObjectStoreError),
    #[error("the manifest cannot be read: {0}")]
    Unreadable(String),
}

/// The most files with variables that a listing names.
const MOST_ENVIRONMENT_FILES: usize = 100;

/// A result of reading a manifest.
pub(crate) trait HasManifest: Send + 'static {
    fn manifest(&self) -> &CheckpointManifest;
}

impl HasManifest for CheckpointManifest {
    fn manifest(&self) -> &CheckpointManifest {
        self
    }
}

impl<T: Send + 'static> HasManifest for (CheckpointManifest, T) {
    fn manifest(&self) -> &CheckpointManifest {
        &self.0
    }
}

impl Checkpoints {
    /// The checkpoints of a project, oldest first.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails. A damaged checkpoint is not an error: it is
    /// listed as such.
    pub async fn list(&self, project: &ProjectId) -> Result<Vec<ListedCheckpoint>, ObjectStoreError> {
        let generations = self.generations(project).await?;
        let mut listed = Vec::new();
        for stamp in generations.committed() {
            // Another process pruned it since.
            let Some(found) = self.describe(project, &generations, stamp).await? else { continue };
            let Described { generation: Generation { saved_at, occasion, .. }, environment_files, condition } = found;
            let key = key::archive(project, stamp).to_string();
            let created_at = stamp.time();
            listed.push(ListedCheckpoint { stamp, key, created_at, saved_at, occasion, environment_files, condition });
        }
        Ok(listed)
    }

    /// Adds to `found` the checkpoints of all projects that contain a workspace's variables in
    /// plain text, written by sessions of older programs. What was found stays there if the search
    /// ends early.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails.
    pub async fn find_environment_files(&self, found: &mut Vec<(ProjectId, Stamp)>) -> Result<(), ObjectStoreError> {
        let objects = self.objects.list(&key::root()).await?;
        let projects: BTreeSet<ProjectId> =
            objects.iter().filter_map(|object| object.location.parts().nth(1)?.as_ref().parse().ok()).collect();
        for project in projects {
            let listed = self.list(&project).await?;
            let exposed = listed.into_iter().filter(|listed| !listed.environment_files.is_empty());
            found.extend(exposed.map(|listed| (project.clone(), listed.stamp)));
        }
        Ok(())
    }

    /// The condition of one checkpoint; [`None`] when it no longer exists.
    pub(crate) async fn condition(
        &self,
        project: &ProjectId,
        generations: &Generations,
        stamp: Stamp,
    ) -> Result<Option<Condition>, ObjectStoreError> {
        Ok(self.describe(project, generations, stamp).await?.map(|described| described.condition))
    }

    /// Describes a checkpoint, including the inputs of retention; [`None`] when it no longer
    /// exists.
    pub(crate) async fn describe(
        &self,
        project: &ProjectId,
        generations: &Generations,
        stamp: Stamp,
    ) -> Result<Option<Described>, ObjectStoreError> {
        let damaged = |reason| Described {
            generation: Generation { stamp, saved_at: stamp.time(), occasion: SaveOccasion::default(), tree: None },
            environment_files: Vec::new(),
            condition: Condition::Damaged { reason },
        };
        let mut environment_files = Vec::new();
        let manifest = match self.describe_listing(project, stamp, &mut environment_files).await {
            Ok(manifest) => manifest,
            Err(ManifestError::Store(ObjectStoreError::NotFound { .. })) => return Ok(None),
            Err(ManifestError::Store(error)) => return Err(error),
            Err(ManifestError::Unreadable(reason)) => return Ok(Some(damaged(reason))),
        };
        let CheckpointManifest { files, bytes, archive, occasion, .. } = manifest;
        let object = match generations.archive(stamp) {
            Some(object) if object.size == archive.bytes => object,
            Some(StoredObject { size, .. }) => {
                return Ok(Some(damaged(format!("the archive has {size} bytes instead of {}", archive.bytes))));
            }
            None => return Ok(Some(damaged("the archive is missing".to_owned()))),
        };
        let check = self.read_check(project, stamp).await.filter(|check| check.applies_to(object));
        let verified = check.is_some();
        let CheckRecord { flaw, same_at, occasion: since, .. } = check.unwrap_or_default();
        if let Some(reason) = flaw {
            return Ok(Some(damaged(reason)));
        }
        let generation = Generation {
            stamp,
            saved_at: same_at.unwrap_or_else(|| stamp.time()),
            occasion: since.map_or(occasion, |since| since.max(occasion)),
            tree: Some(TreeSize { files, bytes }),
        };
        let condition = Condition::Whole { files, bytes: object.size, sha256: archive.sha256, verified };
        Ok(Some(Described { generation, environment_files, condition }))
    }

    /// How many bytes the store holds for a project: archives, and leftovers of interrupted work.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails.
    pub async fn stored_bytes(&self, project: &ProjectId) -> Result<u64, ObjectStoreError> {
        Ok(self.objects.list(&key::checkpoint_folder(project)).await?.iter().map(|object| object.size).sum())
    }

    /// The newest checkpoint, whatever its condition.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails.
    pub async fn newest(&self, project: &ProjectId) -> Result<Option<Stamp>, ObjectStoreError> {
        Ok(self.generations(project).await?.committed().next_back())
    }

    /// The stamp in an archive's key. Whether the checkpoint exists is not checked.
    pub fn stamp_of(&self, project: &ProjectId, key: &str) -> Option<Stamp> {
        let key = object_store::path::Path::parse(key).ok()?;
        let (stamp, _) = key::parse(&key)?;
        (key::archive(project, stamp) == key).then_some(stamp)
    }

    /// Whether the project has any checkpoint.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails.
    pub async fn has_any(&self, project: &ProjectId) -> Result<bool, ObjectStoreError> {
        Ok(self.generations(project).await?.committed().next().is_some())
    }

    /// The head of a checkpoint's manifest; its entries are read and verified.
    pub(crate) async fn manifest(
        &self,
        project: &ProjectId,
        stamp: Stamp,
    ) -> Result<CheckpointManifest, ManifestError> {
        self.read_manifest(project, stamp, |source| entries::read(source, Wanted::Nothing)).await
    }

    /// The manifest with its entries.
    pub(crate) async fn manifest_and_entries(
        &self,
        project: &ProjectId,
        stamp: Stamp,
    ) -> Result<(CheckpointManifest, Entries), ManifestError> {
        let mut spool = Spool::new(self.objects.spool_directory());
        self.read_manifest(project, stamp, move |source| {
            let manifest = entries::read(source, Wanted::Lines(&mut spool))?;
            let entries = Entries::from_lines(spool.finish()?, manifest.listing);
            Ok((manifest, entries))
        })
        .await
    }

    /// Passes the entries to `take` until it breaks. Concurrent scans are limited.
    pub(crate) async fn scan<T: Send + 'static>(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        state: T,
        mut take: impl FnMut(&mut T, ManifestEntry) -> ControlFlow<()> + Send + 'static,
    ) -> Result<(CheckpointManifest, T), ManifestError> {
        self.read_manifest(project, stamp, move |source| {
            let mut state = state;
            let mut each = |entry| take(&mut state, entry);
            let manifest = entries::read(source, Wanted::Each(&mut each))?;
            Ok((manifest, state))
        })
        .await
    }

    /// The manifest, and the files in the checkpoint that contain the workspace's variables in
    /// plain text. Only sessions of older programs wrote such files, before archives were searched.
    async fn describe_listing(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        environment_files: &mut Vec<FilePath>,
    ) -> Result<CheckpointManifest, ManifestError> {
        let manifest = self.manifest(project, stamp).await?;
        if !manifest.searched {
            let take = |found: &mut Vec<FilePath>, entry: ManifestEntry| {
                if is_environment_file(&entry.path) {
                    found.push(entry.path);
                }
                match found.len() < MOST_ENVIRONMENT_FILES {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            };
            *environment_files = self.scan(project, stamp, Vec::new(), take).await?.1;
        }
        Ok(manifest)
    }

    /// Reads a manifest on a blocking thread while it is downloaded.
    async fn read_manifest<T: HasManifest>(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        read: impl FnOnce(archive::ArchiveFeed) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, ManifestError> {
        let _reader = self.readers.acquire().await.expect("it is never closed");
        let mut pieces = std::pin::pin!(self.objects.stream(key::manifest(project, stamp)).await?);
        let (sender, feed) = archive::feed();
        let reading = tokio::task::spawn_blocking(move || read(feed));
        let mut failure = None;
        while let Some(piece) = pieces.next().await {
            match piece {
                // The reader has stopped or failed.
                Ok(piece) => {
                    if sender.send(piece).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        drop(sender);
        let read = reading.await.map_err(|error| ManifestError::Unreadable(error.to_string()))?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        let read = read.map_err(|error| match error.raw_os_error() {
            // The manifest comes from memory: only writing the spool fails with an OS error.
            Some(_) => ManifestError::Store(self.spool_error(error)),
            None => ManifestError::Unreadable(error.to_string()),
        })?;
        let wrong = |what: String| Err(ManifestError::Unreadable(what));
        match read.manifest() {
            CheckpointManifest { project: other, .. } if other != project => {
                wrong(format!("it is of the project {other}"))
            }
            CheckpointManifest { stamp: other, .. } if *other != stamp => {
                wrong(format!("it is of the snapshot {other}"))
            }
            _ => Ok(read),
        }
    }

    pub(crate) async fn generations(&self, project: &ProjectId) -> Result<Generations, ObjectStoreError> {
        let mut generations = Generations::default();
        for object in self.objects.list(&key::checkpoint_folder(project)).await? {
            match key::parse(&object.location) {
                Some((stamp, ObjectPart::Manifest)) => _ = generations.manifests.insert(stamp),
                Some((stamp, ObjectPart::Archive)) => {
                    generations.archives.insert(stamp, StoredObject { size: object.size, tag: object.e_tag });
                }
                None => {}
            }
        }
        Ok(generations)
    }
}
