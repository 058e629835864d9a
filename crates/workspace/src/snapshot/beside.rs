//! Small things that are kept with a project's snapshots and outlive its workspaces: no part of any snapshot.

use bytes::Bytes;

use super::Snapshots;
use super::key::{self, ProjectId};
use super::store::StoreError;

impl Snapshots {
    /// Keeps something under a name, in place of what was there.
    pub(crate) async fn put_beside(&self, project: &ProjectId, name: &str, content: Bytes) -> Result<(), StoreError> {
        self.objects.put(&key::beside(project, name), content).await
    }

    /// What is kept under a name, if there is anything.
    pub(crate) async fn get_beside(&self, project: &ProjectId, name: &str) -> Result<Option<Bytes>, StoreError> {
        match self.objects.get(&key::beside(project, name)).await {
            Ok(content) => Ok(Some(content)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets it; what is not there is forgotten.
    pub(crate) async fn delete_beside(&self, project: &ProjectId, name: &str) -> Result<(), StoreError> {
        self.objects.delete(&key::beside(project, name)).await
    }
}
