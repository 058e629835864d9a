//! Remembers whether archives were verified by reading them in full.
//!
//! A manifest says what an archive must contain; only reading all of it verifies that. The result
//! is stored next to the checkpoints, with the store's ETag of the object that was read: it does
//! not hold for another object. Without a result a checkpoint counts as unverified, so losing one
//! does no harm.

use futures::TryStreamExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use text::error_chain;
use tracing::warn;

use crate::Checkpoints;
use crate::digest::{Digest, DigestHasher};
use crate::key::{self, ProjectId, Stamp};
use crate::listing::{Condition, StoredObject};
use crate::occasion::SaveOccasion;
use crate::restore::Flaw;
use crate::store::ObjectStoreError;

/// The result of reading an archive, and later findings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckRecord {
    /// The ETag of the object that was read.
    tag: Option<String>,
    at: Timestamp,
    /// What was wrong with it; [`None`] when it was complete.
    pub(crate) flaw: Option<String>,
    /// When a save last found the same files and stored no other checkpoint.
    #[serde(default)]
    pub(crate) same_at: Option<Timestamp>,
    /// The occasion of that save.
    #[serde(default)]
    pub(crate) occasion: Option<SaveOccasion>,
}

impl CheckRecord {
    /// Whether the result holds for the object that is stored now.
    pub(crate) fn applies_to(&self, object: &StoredObject) -> bool {
        self.tag == object.tag
    }
}

impl Checkpoints {
    /// Reads the whole archive of a checkpoint, and records whether it matches its manifest.
    /// [`None`] when there is no such checkpoint.
    ///
    /// # Errors
    /// [`ObjectStoreError`] when the store fails, which says nothing about the checkpoint.
    pub async fn verify(&self, project: &ProjectId, stamp: Stamp) -> Result<Option<Condition>, ObjectStoreError> {
        let generations = self.generations(project).await?;
        if let Some(Condition::Whole { bytes, sha256, .. }) = self.condition(project, &generations, stamp).await? {
            let found = self.compute_digest(project, stamp, bytes).await?;
            let flaw = (found != sha256).then(|| Flaw::ArchiveDigest { found, wanted: sha256 }.to_string());
            self.record_check(project, stamp, generations.archive(stamp), flaw).await;
        }
        self.condition(project, &generations, stamp).await
    }

    /// Computes the digest of an archive as it is stored now.
    pub(crate) async fn compute_digest(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        bytes: u64,
    ) -> Result<Digest, ObjectStoreError> {
        let read = self.objects.read(key::archive(project, stamp), bytes);
        let hasher = read.try_fold(DigestHasher::default(), |mut hasher, piece| async move {
            hasher.update(&piece);
            Ok(hasher)
        });
        Ok(hasher.await?.finish())
    }

    pub(crate) async fn read_check(&self, project: &ProjectId, stamp: Stamp) -> Option<CheckRecord> {
        let text = self.objects.get(&key::check(project, stamp)).await.ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Records the result of reading an archive. If that fails, the checkpoint stays unverified.
    pub(crate) async fn record_check(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        object: Option<&StoredObject>,
        flaw: Option<String>,
    ) {
        let Some(object) = object else { return };
        let before = self.read_check(project, stamp).await.unwrap_or_default();
        self.put_check(project, stamp, CheckRecord { tag: object.tag.clone(), at: Timestamp::now(), flaw, ..before })
            .await;
    }

    /// Records that a save found the files unchanged. The checkpoint keeps the highest-ranking of
    /// its occasions.
    pub(crate) async fn record_unchanged(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        occasion: SaveOccasion,
        now: Timestamp,
    ) {
        let Some(before) = self.read_check(project, stamp).await else { return };
        let occasion = before.occasion.max(Some(occasion));
        self.put_check(project, stamp, CheckRecord { same_at: Some(now), occasion, ..before }).await;
    }

    async fn put_check(&self, project: &ProjectId, stamp: Stamp, check: CheckRecord) {
        let text = serde_json::to_vec(&check).expect("names and numbers can be written as JSON");
        if let Err(error) = self.objects.put(&key::check(project, stamp), text.into()).await {
            warn!(%stamp, error = %error_chain(&error), "the result of verifying a checkpoint was not recorded");
        }
    }
}
