//! What is known of archives by having read them: that they are what was saved, or what is wrong with them.
//!
//! A manifest says what an archive must be; only who reads all of it knows that it is. That is remembered beside the
//! snapshots, together with the store's tag of the object that was read: of another object nothing is known. Without such a
//! note a snapshot counts as unverified, so that losing one does no harm.

use futures::TryStreamExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Snapshots;
use super::digest::{Digest, Hasher};
use super::key::{self, ProjectId, Stamp};
use super::listing::{Condition, Object};
use super::occasion::Occasion;
use super::restore::Flaw;
use super::store::StoreError;
use crate::chain::chain;

/// What reading an archive showed, and what was found out since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Check {
    /// The object that was read.
    tag: Option<String>,
    at: Timestamp,
    /// What was wrong with it; nothing when it was whole.
    pub(super) flaw: Option<String>,
    /// A save found the same files then, and made no other snapshot.
    #[serde(default)]
    pub(super) same_at: Option<Timestamp>,
    /// Why that was.
    #[serde(default)]
    pub(super) occasion: Option<Occasion>,
}

impl Check {
    /// Whether it is about the object that is there now.
    pub(super) fn is_of(&self, object: &Object) -> bool {
        self.tag == object.tag
    }
}

impl Snapshots {
    /// Reads the whole archive of a snapshot, and remembers whether it is what was saved. None when there is no such
    /// snapshot.
    ///
    /// # Errors
    /// When the store is in trouble, which says nothing about the snapshot.
    pub async fn verify(&self, project: &ProjectId, stamp: Stamp) -> Result<Option<Condition>, StoreError> {
        let generations = self.generations(project).await?;
        if let Some(Condition::Whole { bytes, sha256, .. }) = self.condition(project, &generations, stamp).await? {
            let found = self.digest_of(project, stamp, bytes).await?;
            let flaw = (found != sha256).then(|| Flaw::ArchiveDigest { found, wanted: sha256 }.to_string());
            self.note_check(project, stamp, generations.archive(stamp), flaw).await;
        }
        self.condition(project, &generations, stamp).await
    }

    /// What an archive's digest is now.
    pub(super) async fn digest_of(&self, project: &ProjectId, stamp: Stamp, bytes: u64) -> Result<Digest, StoreError> {
        let read = self.objects.read(key::archive(project, stamp), bytes);
        let hasher = read.try_fold(Hasher::default(), |mut hasher, piece| async move {
            hasher.update(&piece);
            Ok(hasher)
        });
        Ok(hasher.await?.finish())
    }

    pub(super) async fn check_of(&self, project: &ProjectId, stamp: Stamp) -> Option<Check> {
        let text = self.objects.get(&key::check(project, stamp)).await.ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Remembers what reading an archive showed. A note that cannot be written leaves the snapshot unverified.
    pub(super) async fn note_check(
        &self,
        project: &ProjectId,
        stamp: Stamp,
        object: Option<&Object>,
        flaw: Option<String>,
    ) {
        let Some(object) = object else { return };
        let before = self.check_of(project, stamp).await.unwrap_or_default();
        self.put_check(project, stamp, Check { tag: object.tag.clone(), at: Timestamp::now(), flaw, ..before }).await;
    }

    /// Remembers that a save found the files of a snapshot, which gets the weightiest of all reasons it was wanted for.
    pub(super) async fn note_same(&self, project: &ProjectId, stamp: Stamp, occasion: Occasion, now: Timestamp) {
        let Some(before) = self.check_of(project, stamp).await else { return };
        let occasion = before.occasion.max(Some(occasion));
        self.put_check(project, stamp, Check { same_at: Some(now), occasion, ..before }).await;
    }

    async fn put_check(&self, project: &ProjectId, stamp: Stamp, check: Check) {
        let text = serde_json::to_vec(&check).expect("names and numbers can be written as JSON");
        if let Err(error) = self.objects.put(&key::check(project, stamp), text.into()).await {
            warn!(%stamp, error = %chain(&error), "what a look at a snapshot showed was not remembered");
        }
    }
}
