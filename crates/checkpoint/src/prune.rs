//! Removes old checkpoints. The manifest is deleted first: from then on the checkpoint does not
//! exist, and its archive is an orphan that the next prune removes.

use std::collections::BTreeSet;

use jiff::Timestamp;
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::Checkpoints;
use crate::faults::{CheckpointPoint, reach};
use crate::key::{self, ObjectPart, ProjectId, Stamp};
use crate::listing::Generations;
use crate::retention::RetentionPolicy;
use crate::store::ObjectStoreError;

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Checkpoints, oldest first.
    pub checkpoints: Vec<Stamp>,
    /// Archives of interrupted saves, and of partly removed checkpoints.
    pub orphans: Vec<Stamp>,
}

/// The object that records sharp shrinks of the tree.
const SHRINKS: &str = "shrink.json";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Shrinks {
    /// The newest checkpoint when a user confirmed that the tree is meant to be this small: older
    /// ones are not retained for being larger.
    at: Option<Stamp>,
    /// Those that the last prune retained because of a shrink.
    before: BTreeSet<Stamp>,
}

impl Checkpoints {
    /// Removes the checkpoints of a project beyond the `keep` highest-ranking ones (see
    /// `retention`), and leftovers of interrupted work. A damaged one does not count: it cannot be
    /// restored.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails; a retry continues.
    pub async fn prune(&self, project: &ProjectId, keep: usize) -> Result<Pruned, ObjectStoreError> {
        let _lock = self.lock_project(project).await;
        self.prune_locked(project, keep, None).await
    }

    pub(crate) async fn prune_locked(
        &self,
        project: &ProjectId,
        keep: usize,
        spare: Option<Stamp>,
    ) -> Result<Pruned, ObjectStoreError> {
        let generations = self.generations(project).await?;
        reach(CheckpointPoint::PruneListed).await;
        let mut pruned = Pruned::default();
        for stamp in self.select_removable(project, &generations, keep.max(1), spare).await? {
            self.delete_one(project, stamp).await?;
            pruned.checkpoints.push(stamp);
        }
        // An archive newer than every checkpoint may be about to be committed by the process that
        // holds the lease.
        let newest = generations.committed().next_back();
        for stamp in generations.orphans().filter(|stamp| Some(*stamp) < newest) {
            self.objects.delete(&key::archive(project, stamp)).await?;
            reach(CheckpointPoint::PruneOrphanDeleted).await;
            pruned.orphans.push(stamp);
        }
        self.objects.sweep(&key::checkpoint_folder(project)).await?;
        Ok(pruned)
    }

    /// Removes all objects of a project. No save may be in progress.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails; a retry continues.
    pub async fn remove_all(&self, project: &ProjectId) -> Result<(), ObjectStoreError> {
        let _lock = self.lock_project(project).await;
        let all = self.objects.list(&key::project_root(project)).await?;
        let is_manifest = |object: &ObjectMeta| matches!(key::parse(&object.location), Some((_, ObjectPart::Manifest)));
        let (manifests, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_manifest);
        for object in manifests.into_iter().chain(rest) {
            self.objects.delete(&object.location).await?;
        }
        self.objects.sweep(&key::checkpoint_folder(project)).await.map(drop)
    }

    /// Removes one checkpoint. Returns false when it does not exist.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails; a retry continues.
    pub async fn delete(&self, project: &ProjectId, stamp: Stamp) -> Result<bool, ObjectStoreError> {
        let _lock = self.lock_project(project).await;
        let exists = self.generations(project).await?.committed().any(|there| there == stamp);
        if exists {
            self.delete_one(project, stamp).await?;
        }
        Ok(exists)
    }

    /// Records that the tree is meant to be as small as in the newest checkpoint, and removes those
    /// retained because it had shrunk.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails; a retry continues.
    pub async fn confirm_shrink(&self, project: &ProjectId) -> Result<Pruned, ObjectStoreError> {
        let _lock = self.lock_project(project).await;
        let at = self.newest(project).await?;
        self.put_shrinks(project, &Shrinks { at, before: BTreeSet::new() }).await?;
        self.prune_locked(project, self.settings.keep, None).await
    }

    async fn put_shrinks(&self, project: &ProjectId, shrinks: &Shrinks) -> Result<(), ObjectStoreError> {
        let text = serde_json::to_vec(shrinks).expect("texts can be written as JSON");
        self.put_metadata(project, SHRINKS, text.into()).await
    }

    async fn delete_one(&self, project: &ProjectId, stamp: Stamp) -> Result<(), ObjectStoreError> {
        // The verification result first: without the manifest it would never be found.
        self.objects.delete(&key::check(project, stamp)).await?;
        self.objects.delete(&key::manifest(project, stamp)).await?;
        reach(CheckpointPoint::PruneManifestDeleted).await;
        self.objects.delete(&key::archive(project, stamp)).await?;
        reach(CheckpointPoint::PruneArchiveDeleted).await;
        Ok(())
    }

    async fn select_removable(
        &self,
        project: &ProjectId,
        generations: &Generations,
        keep: usize,
        spare: Option<Stamp>,
    ) -> Result<Vec<Stamp>, ObjectStoreError> {
        // Within the limit, no manifest needs to be read.
        if generations.committed().count() <= keep {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for stamp in generations.committed() {
            all.extend(self.describe(project, generations, stamp).await?.map(|described| described.generation));
        }
        let shrinks = self.get_metadata(project, SHRINKS).await?;
        let shrinks = shrinks.map_or_else(|| Ok(Shrinks::default()), |text| serde_json::from_slice(&text));
        let Shrinks { at, before } = match shrinks {
            Ok(shrinks) => shrinks,
            // It may protect any of them.
            Err(error) => {
                warn!(
                    %project, %error,
                    "{SHRINKS} is unreadable, so no snapshot is removed; confirm a shrink to renew it"
                );
                return Ok(Vec::new());
            }
        };
        let keep_for = self.settings.keep_for;
        let retention = RetentionPolicy { keep, keep_for, spare, shrink_confirmed: at, before_shrink: before.clone() };
        let selection = retention.select(&all, Timestamp::now());
        // Written before the small trees, by which the next prune would know it, are removed.
        if selection.before_shrink != before {
            self.put_shrinks(project, &Shrinks { at, before: selection.before_shrink }).await?;
        }
        Ok(selection.removable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Objects;
    use object_store::path::Path as Key;

    #[tokio::test]
    async fn remove_all_removes_only_that_project() {
        let checkpoints = Checkpoints::new(Objects::memory());
        let (gone, kept): (ProjectId, ProjectId) = ("gone".parse().expect("an id"), "gone-not".parse().expect("an id"));
        let (stamp, other): (Stamp, Stamp) =
            ("20261116T000937Z".parse().expect("a stamp"), "20261116T000938Z".parse().expect("a stamp"));
        for project in [&gone, &kept] {
            let whole = [key::archive(project, stamp), key::manifest(project, stamp), key::check(project, stamp)];
            // Includes an interrupted save.
            for key in whole.into_iter().chain([key::archive(project, other)]) {
                checkpoints.objects().put(&key, "x".into()).await.expect("written");
            }
        }
        for _ in 0..2 {
            checkpoints.remove_all(&gone).await.expect("removed, also when nothing is there any more");
            assert_eq!(checkpoints.stored_bytes(&gone).await.expect("listed"), 0);
        }
        assert_eq!(checkpoints.stored_bytes(&kept).await.expect("listed"), 3);
        let left = checkpoints.objects().list(&Key::from("projects")).await.expect("listed");
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(checkpoints.has_any(&kept).await.expect("listed"));
    }
}
