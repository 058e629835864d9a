//! Which snapshots there are.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::Snapshots;
use super::digest::Digest;
use super::key::{self, Part, ProjectId, Stamp};
use super::manifest::{FORMAT, Manifest};
use super::store::StoreError;

/// A snapshot that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub stamp: Stamp,
    /// The archive's key in the store.
    pub key: String,
    pub created_at: Timestamp,
    pub condition: Condition,
}

/// What can be said of a snapshot without reading its archive again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The manifest can be read, and the archive is there in its whole length. It is verified when all of it was read since it
    /// was stored, and was what was saved.
    Whole { files: u64, bytes: u64, sha256: Digest, verified: bool },
    /// It cannot be restored.
    Damaged { reason: String },
}

/// The objects of a project, by what they are.
#[derive(Debug, Default)]
pub(super) struct Generations {
    manifests: BTreeSet<Stamp>,
    archives: BTreeMap<Stamp, Object>,
}

/// An object in the store.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) size: u64,
    /// Changes when the object does.
    pub(super) tag: Option<String>,
}

impl Generations {
    /// Those that exist, oldest first.
    pub(super) fn committed(&self) -> impl DoubleEndedIterator<Item = Stamp> + Clone {
        self.manifests.iter().copied()
    }

    /// Archives that nothing speaks of, oldest first.
    pub(super) fn orphans(&self) -> impl Iterator<Item = Stamp> {
        self.archives.keys().copied().filter(|stamp| !self.manifests.contains(stamp))
    }

    pub(super) fn archive_size(&self, stamp: Stamp) -> Option<u64> {
        self.archive(stamp).map(|archive| archive.size)
    }

    pub(super) fn archive(&self, stamp: Stamp) -> Option<&Object> {
        self.archives.get(&stamp)
    }

    /// The last stamp that was used, also for something that was never finished.
    pub(super) fn newest(&self) -> Option<Stamp> {
        self.manifests.last().max(self.archives.keys().last()).copied()
    }
}

/// Why a manifest is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the manifest cannot be read: {0}")]
    Unreadable(String),
}

impl Snapshots {
    /// The snapshots of a project, oldest first.
    ///
    /// # Errors
    /// When the store is in trouble. A snapshot that is damaged is none: it is listed as such.
    pub async fn list(&self, project: &ProjectId) -> Result<Vec<Listed>, StoreError> {
        let generations = self.generations(project).await?;
        let mut listed = Vec::new();
        for stamp in generations.committed() {
            // Somebody pruned meanwhile.
            let Some(condition) = self.condition(project, &generations, stamp).await? else { continue };
            let key = key::archive(project, stamp).to_string();
            listed.push(Listed { stamp, key, created_at: stamp.time(), condition });
        }
        Ok(listed)
    }

    /// What can be said of one snapshot; none when it does not exist any more.
    pub(super) async fn condition(
        &self,
        project: &ProjectId,
        generations: &Generations,
        stamp: Stamp,
    ) -> Result<Option<Condition>, StoreError> {
        let manifest = match self.manifest(project, stamp).await {
            Ok(manifest) => manifest,
            Err(ManifestError::Store(StoreError::NotFound { .. })) => return Ok(None),
            Err(ManifestError::Store(error)) => return Err(error),
            Err(ManifestError::Unreadable(reason)) => return Ok(Some(Condition::Damaged { reason })),
        };
        let Manifest { files, archive, .. } = manifest;
        Ok(Some(match generations.archive(stamp) {
            Some(object) if object.size == archive.bytes => {
                let checked = self.check_of(project, stamp).await.and_then(|check| check.of(object));
                let (bytes, sha256) = (object.size, archive.sha256);
                match checked {
                    Some(Err(reason)) => Condition::Damaged { reason },
                    known => Condition::Whole { files, bytes, sha256, verified: known.is_some() },
                }
            }
            Some(Object { size, .. }) => {
                Condition::Damaged { reason: format!("the archive has {size} bytes instead of {}", archive.bytes) }
            }
            None => Condition::Damaged { reason: "the archive is missing".to_owned() },
        }))
    }

    /// How much the store keeps for a project: archives, and what is left of interrupted work.
    ///
    /// # Errors
    /// When the store is in trouble.
    pub async fn stored_bytes(&self, project: &ProjectId) -> Result<u64, StoreError> {
        Ok(self.objects.list(&key::folder(project)).await?.iter().map(|object| object.size).sum())
    }

    /// The newest snapshot there is, whatever it is worth.
    ///
    /// # Errors
    /// When the store is in trouble.
    pub async fn newest(&self, project: &ProjectId) -> Result<Option<Stamp>, StoreError> {
        Ok(self.generations(project).await?.committed().next_back())
    }

    /// Whether there is anything to be restored.
    ///
    /// # Errors
    /// When the store is in trouble.
    pub async fn has_any(&self, project: &ProjectId) -> Result<bool, StoreError> {
        Ok(self.generations(project).await?.committed().next().is_some())
    }

    /// What a snapshot's files must be.
    pub(super) async fn manifest(&self, project: &ProjectId, stamp: Stamp) -> Result<Manifest, ManifestError> {
        let text = self.objects.get(&key::manifest(project, stamp)).await?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| ManifestError::Unreadable(error.to_string()))?;
        let wrong = |what: String| Err(ManifestError::Unreadable(what));
        match &manifest {
            Manifest { format, .. } if *format != FORMAT => wrong(format!("its format is {format}, not {FORMAT}")),
            Manifest { project: other, .. } if other != project => wrong(format!("it is of the project {other}")),
            Manifest { stamp: other, .. } if *other != stamp => wrong(format!("it is of the snapshot {other}")),
            _ => Ok(manifest),
        }
    }

    pub(super) async fn generations(&self, project: &ProjectId) -> Result<Generations, StoreError> {
        let mut generations = Generations::default();
        for object in self.objects.list(&key::folder(project)).await? {
            match key::parse(&object.location) {
                Some((stamp, Part::Manifest)) => _ = generations.manifests.insert(stamp),
                Some((stamp, Part::Archive)) => {
                    generations.archives.insert(stamp, Object { size: object.size, tag: object.e_tag });
                }
                None => {}
            }
        }
        Ok(generations)
    }
}
