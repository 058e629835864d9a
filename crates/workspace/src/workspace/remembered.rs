//! What is remembered of a workspace that was destroyed, with its snapshots: whoever creates it again gets its files, and what
//! served them. Its variables are secrets and are forgotten.

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::core::{Core, Turn, services};
use crate::chain::chain;
use crate::devserver::DevServer;
use crate::records::ChangeError;
use crate::snapshot::StoreError;

const NAME: &str = "workspace.json";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Remembered {
    dev_server: Option<DevServer>,
}

impl Core {
    /// For whoever creates a workspace of this name after this one. What cannot be remembered has to be declared again.
    pub(super) async fn remember(&self) {
        let dev_server = self.dev_server();
        let snapshots = &self.house.snapshots;
        let kept = if dev_server.is_some() {
            let text =
                serde_json::to_vec(&Remembered { dev_server }).expect("texts and numbers can be written as JSON");
            snapshots.put_beside(&self.project, NAME, text.into()).await
        } else {
            snapshots.delete_beside(&self.project, NAME).await
        };
        if let Err(error) = kept {
            warn!(workspace = %self.name, error = %chain(&error), "its dev server will have to be declared again");
        }
    }

    /// What served the files that came back is declared, where nothing is.
    pub(super) async fn declare_remembered(&self, turn: &Turn<'_>) -> Result<(), ChangeError> {
        if self.dev_server().is_some() {
            return Ok(());
        }
        match self.remembered().await {
            Ok(Remembered { dev_server: Some(server) }) => {
                self.update(turn, |record, _| record.services = services(Some(&server))).await
            }
            Ok(Remembered { dev_server: None }) => Ok(()),
            Err(error) => {
                warn!(workspace = %self.name, error = %chain(&error), "what was remembered of it cannot be read");
                Ok(())
            }
        }
    }

    async fn remembered(&self) -> Result<Remembered, StoreError> {
        let text = self.house.snapshots.get_beside(&self.project, NAME).await?;
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default())
    }
}
