//! Small objects stored with a project's checkpoints that outlive its workspaces and belong to no
//! checkpoint.

use bytes::Bytes;

use crate::Checkpoints;
use crate::key::{self, ProjectId};
use crate::store::ObjectStoreError;

impl Checkpoints {
    /// Stores an object under a name, replacing an earlier one.
    pub async fn put_metadata(&self, project: &ProjectId, name: &str, content: Bytes) -> Result<(), ObjectStoreError> {
        self.objects.put(&key::metadata(project, name), content).await
    }

    /// The object under a name, if there is one.
    pub async fn get_metadata(&self, project: &ProjectId, name: &str) -> Result<Option<Bytes>, ObjectStoreError> {
        match self.objects.get(&key::metadata(project, name)).await {
            Ok(content) => Ok(Some(content)),
            Err(ObjectStoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object; deleting an absent one succeeds.
    pub async fn delete_metadata(&self, project: &ProjectId, name: &str) -> Result<(), ObjectStoreError> {
        self.objects.delete(&key::metadata(project, name)).await
    }
}
