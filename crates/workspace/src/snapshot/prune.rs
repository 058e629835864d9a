//! Removes old snapshots. The manifest goes first: from then on the snapshot does not exist, and what is left of it is an
//! archive that nothing speaks of, which the next prune removes.

use jiff::Timestamp;
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::Snapshots;
use super::key::{self, Part, ProjectId, Stamp};
use super::listing::Generations;
use super::retention::Retention;
use super::store::StoreError;
use crate::faults::{Point, reach};

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Snapshots, oldest first.
    pub snapshots: Vec<Stamp>,
    /// Archives of saves that were interrupted, and of snapshots that were removed in part.
    pub orphans: Vec<Stamp>,
}

/// Where it is remembered that a person confirmed a shrink of the tree.
const CONFIRMED: &str = "shrink.json";

#[derive(Debug, Default, Serialize, Deserialize)]
struct Confirmed {
    /// The newest snapshot at that time: those before it are not kept for being larger.
    at: Option<Stamp>,
}

impl Snapshots {
    /// Removes the snapshots of a project beyond the `keep` that are worth most (`retention`), and what interrupted work left
    /// behind. One that is damaged does not count: it cannot be restored.
    ///
    /// # Errors
    /// When the store is in trouble; calling again goes on.
    pub async fn prune(&self, project: &ProjectId, keep: usize) -> Result<Pruned, StoreError> {
        let _turn = self.turn(project).await;
        self.prune_in_turn(project, keep, None).await
    }

    pub(super) async fn prune_in_turn(
        &self,
        project: &ProjectId,
        keep: usize,
        spare: Option<Stamp>,
    ) -> Result<Pruned, StoreError> {
        let generations = self.generations(project).await?;
        reach(Point::PruneListed).await;
        let mut pruned = Pruned::default();
        for stamp in self.select_removable(project, &generations, keep.max(1), spare).await? {
            self.delete_one(project, stamp).await?;
            pruned.snapshots.push(stamp);
        }
        // One that is newer than every snapshot may be about to become one, in a process that has the lease.
        let newest = generations.committed().next_back();
        for stamp in generations.orphans().filter(|stamp| Some(*stamp) < newest) {
            self.objects.delete(&key::archive(project, stamp)).await?;
            reach(Point::PruneOrphanDeleted).await;
            pruned.orphans.push(stamp);
        }
        self.objects.sweep(&key::folder(project)).await?;
        Ok(pruned)
    }

    /// Removes all snapshots of a project, and whatever else the store keeps for it. Nobody may be saving there.
    ///
    /// # Errors
    /// When the store is in trouble; calling again goes on.
    pub async fn remove_all(&self, project: &ProjectId) -> Result<(), StoreError> {
        let _turn = self.turn(project).await;
        let all = self.objects.list(&key::everything(project)).await?;
        let is_manifest = |object: &ObjectMeta| matches!(key::parse(&object.location), Some((_, Part::Manifest)));
        let (manifests, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_manifest);
        for object in manifests.into_iter().chain(rest) {
            self.objects.delete(&object.location).await?;
        }
        self.objects.sweep(&key::folder(project)).await.map(drop)
    }

    /// Removes one snapshot. False when there is none of that name.
    ///
    /// # Errors
    /// When the store is in trouble; calling again goes on.
    pub async fn delete(&self, project: &ProjectId, stamp: Stamp) -> Result<bool, StoreError> {
        let _turn = self.turn(project).await;
        let exists = self.generations(project).await?.committed().any(|there| there == stamp);
        if exists {
            self.delete_one(project, stamp).await?;
        }
        Ok(exists)
    }

    /// Remembers that the tree is meant to be as small as it is in the newest snapshot, and removes those that were kept
    /// because it had shrunk.
    ///
    /// # Errors
    /// When the store is in trouble; calling again goes on.
    pub async fn confirm_shrink(&self, project: &ProjectId) -> Result<Pruned, StoreError> {
        let _turn = self.turn(project).await;
        let at = self.newest(project).await?;
        let text = serde_json::to_vec(&Confirmed { at }).expect("a text can be written as JSON");
        self.put_beside(project, CONFIRMED, text.into()).await?;
        self.prune_in_turn(project, self.settings.keep, None).await
    }

    async fn delete_one(&self, project: &ProjectId, stamp: Stamp) -> Result<(), StoreError> {
        // First what is known of it: nothing else would ever remove that.
        self.objects.delete(&key::check(project, stamp)).await?;
        self.objects.delete(&key::manifest(project, stamp)).await?;
        reach(Point::PruneManifestDeleted).await;
        self.objects.delete(&key::archive(project, stamp)).await?;
        reach(Point::PruneArchiveDeleted).await;
        Ok(())
    }

    async fn select_removable(
        &self,
        project: &ProjectId,
        generations: &Generations,
        keep: usize,
        spare: Option<Stamp>,
    ) -> Result<Vec<Stamp>, StoreError> {
        // Nothing is to be removed, so that nothing need be read.
        if generations.committed().count() <= keep {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for stamp in generations.committed() {
            all.extend(self.describe(project, generations, stamp).await?.map(|described| described.generation));
        }
        let confirmed = self.get_beside(project, CONFIRMED).await?;
        let confirmed: Confirmed = confirmed.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let keep_for = self.settings.keep_for;
        let retention = Retention { keep, keep_for, spare, shrink_confirmed: confirmed.at };
        Ok(retention.select_removable(&all, Timestamp::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Objects;
    use object_store::path::Path as Key;

    #[tokio::test]
    async fn nothing_of_a_project_is_left_and_others_keep_theirs() {
        let snapshots = Snapshots::new(Objects::memory());
        let (gone, kept): (ProjectId, ProjectId) = ("gone".parse().expect("an id"), "gone-not".parse().expect("an id"));
        let (stamp, other): (Stamp, Stamp) =
            ("20261116T000937Z".parse().expect("a stamp"), "20261116T000938Z".parse().expect("a stamp"));
        for project in [&gone, &kept] {
            let whole = [key::archive(project, stamp), key::manifest(project, stamp), key::check(project, stamp)];
            // A save that broke off, too.
            for key in whole.into_iter().chain([key::archive(project, other)]) {
                snapshots.objects().put(&key, "x".into()).await.expect("written");
            }
        }
        for _ in 0..2 {
            snapshots.remove_all(&gone).await.expect("removed, also when nothing is there any more");
            assert_eq!(snapshots.stored_bytes(&gone).await.expect("listed"), 0);
        }
        assert_eq!(snapshots.stored_bytes(&kept).await.expect("listed"), 3);
        let left = snapshots.objects().list(&Key::from("projects")).await.expect("listed");
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(snapshots.has_any(&kept).await.expect("listed"));
    }
}
