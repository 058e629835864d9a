//! One workspace for the clients. It is this process's own while somebody works there.

use super::stay;
use crate::workspace::house::{Ending, House};
use async_trait::async_trait;
use mcp::{Contents, EnterError, Entered, ReadError, Workplace, Workplaces};
use std::sync::Arc;
use tokio::sync::Mutex;
use tools::ToolDispatcher;
use workspace::{Workspace, WorkspaceName};

pub(super) struct Residence {
    house: Arc<House>,
    name: WorkspaceName,
    ending: Ending,
    /// While somebody works there.
    here: Mutex<Option<Here>>,
}

#[derive(Clone)]
struct Here {
    workspace: Workspace,
    port: Option<u16>,
}

impl Residence {
    pub(super) fn new(house: Arc<House>, name: WorkspaceName, ending: Ending) -> Self {
        Self { house, name, ending, here: Mutex::default() }
    }

    async fn come(&self) -> anyhow::Result<Here> {
        let view = self.house.look(&self.name).await?;
        let workspace = self.house.enter(&self.name).await?;
        Ok(Here { workspace, port: view.dev_server.map(|server| server.port) })
    }
}

#[async_trait]
impl Workplaces for Residence {
    async fn enter(&self) -> Result<Entered, EnterError> {
        let mut here = self.here.lock().await;
        let known = match &*here {
            Some(known) => known.clone(),
            None => {
                self.come().await.map_err(|error| EnterError(format!("There is nothing to work in: {error:#}.")))?
            }
        };
        *here = Some(known.clone());
        let room = Room { house: Arc::clone(&self.house), name: self.name.clone(), here: known };
        Ok(Entered { workplace: Arc::new(room), notice: None })
    }

    async fn leave(&self) {
        let Some(Here { workspace, port }) = self.here.lock().await.take() else { return };
        self.house.finish(&workspace, port, self.ending).await;
        drop(workspace);
        self.house.leave().await;
    }
}

/// What clients see of a workspace that this process has.
pub(super) struct Room {
    house: Arc<House>,
    name: WorkspaceName,
    here: Here,
}

impl Room {
    /// In a workspace that somebody else of this process works in too.
    pub(super) fn shared(house: Arc<House>, workspace: Workspace, port: u16) -> Self {
        let name = workspace.name().clone();
        Self { house, name, here: Here { workspace, port: Some(port) } }
    }
}

#[async_trait]
impl Workplace for Room {
    /// Sandboxes come and go: clients know the workspace.
    fn sandbox(&self) -> &str {
        self.name.as_str()
    }

    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher> {
        Arc::new(self.house.tools(&self.here.workspace, self.here.port).session(session))
    }

    async fn read(&self, path: &str, most: usize) -> Result<Contents, ReadError> {
        let pass = self.here.workspace.enter().await.map_err(|error| ReadError::Failed(error.to_string()))?;
        stay::read(pass.sandbox(), path, most).await
    }
}
