//! The tombstone of a destroyed workspace, stored with its checkpoints: a new workspace of the same
//! name gets its files and its dev server. Its variables are secrets and are not stored.

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::core::{OpGuard, WorkspaceCore, services};
use crate::devserver::DevServer;
use crate::records::RecordChangeError;
use checkpoint::ObjectStoreError;
use text::error_chain;

const NAME: &str = "workspace.json";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Tombstone {
    dev_server: Option<DevServer>,
}

impl WorkspaceCore {
    /// Writes the tombstone for a later workspace of this name. If that fails, the dev server has
    /// to be declared again.
    pub(super) async fn write_tombstone(&self) {
        let dev_server = self.dev_server();
        let checkpoints = &self.context.checkpoints;
        let kept = if dev_server.is_some() {
            let text = serde_json::to_vec(&Tombstone { dev_server }).expect("texts and numbers can be written as JSON");
            checkpoints.put_metadata(&self.project, NAME, text.into()).await
        } else {
            checkpoints.delete_metadata(&self.project, NAME).await
        };
        if let Err(error) = kept {
            warn!(workspace = %self.name, error = %error_chain(&error), "the tombstone could not be written; its dev server must be declared again");
        }
    }

    /// Declares the dev server of the tombstone, if none is declared.
    pub(super) async fn declare_from_tombstone(&self, op: &OpGuard<'_>) -> Result<(), RecordChangeError> {
        if self.dev_server().is_some() {
            return Ok(());
        }
        match self.read_tombstone().await {
            Ok(Tombstone { dev_server: Some(server) }) => {
                self.update(op, |record, _| record.services = services(Some(&server))).await
            }
            Ok(Tombstone { dev_server: None }) => Ok(()),
            Err(error) => {
                warn!(workspace = %self.name, error = %error_chain(&error), "the tombstone of the workspace could not be read");
                Ok(())
            }
        }
    }

    async fn read_tombstone(&self) -> Result<Tombstone, ObjectStoreError> {
        let text = self.context.checkpoints.get_metadata(&self.project, NAME).await?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default())
    }
}
