//! What the life of a workspace asks of its checkpoints. Lists, browsing and metadata go to
//! [`Checkpoints`] itself.

use async_trait::async_trait;
use checkpoint::{
    CheckpointOptions, Checkpoints, ObjectStoreError, ProjectId, RestoreError, Restored, SaveError, SavedCheckpoint,
    Stamp, Which,
};
use sdk::Sandbox;

use crate::checkpoint_sandbox::ClientSandbox;

/// The checkpoints of projects, and the sandboxes that they are saved from and restored in.
#[async_trait]
pub(crate) trait CheckpointStore: Send + Sync {
    /// Saves the files of a sandbox as the newest checkpoint, verifies it, then prunes old ones. A
    /// failed save leaves the earlier ones.
    async fn save(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        options: &CheckpointOptions,
    ) -> Result<SavedCheckpoint, SaveError>;

    /// Replaces the files of a sandbox. A failed restore leaves them unchanged.
    async fn restore(&self, sandbox: &Sandbox, project: &ProjectId, which: Which) -> Result<Restored, RestoreError>;

    async fn newest(&self, project: &ProjectId) -> Result<Option<Stamp>, ObjectStoreError>;

    /// Fails unless the checkpoint exists.
    async fn require(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError>;

    /// Returns false when it does not exist.
    async fn delete(&self, project: &ProjectId, stamp: Stamp) -> Result<bool, ObjectStoreError>;
}

#[async_trait]
impl CheckpointStore for Checkpoints {
    async fn save(
        &self,
        sandbox: &Sandbox,
        project: &ProjectId,
        options: &CheckpointOptions,
    ) -> Result<SavedCheckpoint, SaveError> {
        Self::save(self, &ClientSandbox(sandbox.clone()), project, options).await
    }

    async fn restore(&self, sandbox: &Sandbox, project: &ProjectId, which: Which) -> Result<Restored, RestoreError> {
        Self::restore(self, &ClientSandbox(sandbox.clone()), project, which).await
    }

    async fn newest(&self, project: &ProjectId) -> Result<Option<Stamp>, ObjectStoreError> {
        Self::newest(self, project).await
    }

    async fn require(&self, project: &ProjectId, stamp: Stamp) -> Result<(), RestoreError> {
        Self::require(self, project, stamp).await
    }

    async fn delete(&self, project: &ProjectId, stamp: Stamp) -> Result<bool, ObjectStoreError> {
        Self::delete(self, project, stamp).await
    }
}
