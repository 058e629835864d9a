//! What the studio is given by this program: workspaces with their own observer, tools with pictures, models by the environment.

use super::models::Models;
use crate::config::Config;
use crate::screenshots::Pictures;
use crate::workspace::photographs::Previews;
use ::studio::{Chosen, NoPicture, Picture, Premises};
use agent::model::ChoiceError;
use async_trait::async_trait;
use browser::store::Occasion;
use std::sync::{Arc, OnceLock};
use tools::{Capture, SandboxToolDispatcher, ToolDispatcher};
use tracing::info;
use workspace::config::{Variables, WorkspaceConfig};
use workspace::events::{Observer, WorkspaceEvent};
use workspace::provider::LocalServer;
use workspace::{Settings, Workspace, Workspaces};

pub(super) struct Rooms {
    workspaces: Workspaces,
    pictures: Arc<Pictures>,
    models: Models,
    teller: Arc<Teller>,
}

impl Rooms {
    pub(super) async fn open(
        config: &Config,
        workspaces: &WorkspaceConfig,
        variables: Variables<'_>,
        local: &Arc<dyn LocalServer>,
        models: Models,
    ) -> anyhow::Result<Self> {
        let teller = Arc::new(Teller::default());
        let observer = Arc::clone(&teller) as Arc<dyn Observer>;
        let workspaces = Workspaces::from_config(workspaces, variables, local, observer, Settings::default()).await?;
        Ok(Self { workspaces, pictures: Pictures::new(config), models, teller })
    }

    /// Ends the browser.
    pub(super) async fn close(&self) {
        self.pictures.close().await;
    }
}

/// Tells the log, and the studio once there is one.
#[derive(Default)]
struct Teller {
    studio: OnceLock<Arc<dyn Observer>>,
}

#[async_trait]
impl Observer for Teller {
    async fn event(&self, event: &WorkspaceEvent) {
        let told = serde_json::to_string(&event.kind).unwrap_or_default();
        info!(workspace = %event.workspace, event = told, "a workspace's event");
        if let Some(studio) = self.studio.get() {
            studio.event(event).await;
        }
    }
}

#[async_trait]
impl Premises for Rooms {
    fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        // There is one studio a program.
        let _ = self.teller.studio.set(observer);
    }

    fn tools(&self, workspace: &Workspace, preview_port: u16) -> Arc<dyn ToolDispatcher> {
        let name = workspace.name().clone();
        let previews = Previews::new(Arc::clone(&self.pictures), self.workspaces.clone(), name);
        let tools = SandboxToolDispatcher::on_workspace(workspace.clone()).screenshots(Arc::new(previews));
        Arc::new(tools.preview_port(preview_port))
    }

    fn model(&self, wanted: Option<&str>) -> Result<Chosen, ChoiceError> {
        self.models.choose(wanted)
    }

    fn models(&self) -> Vec<String> {
        self.models.names()
    }

    async fn photograph(&self, workspace: &Workspace, port: u16) -> Result<Vec<Picture>, NoPicture> {
        let pass = workspace.enter().await.map_err(|error| NoPicture(error.to_string()))?;
        let occasion = Occasion::DevServer { at: jiff::Timestamp::now() };
        let capture = Capture { port, url_path: "/".to_owned(), full_page: false };
        let shots = self.pictures.capture(pass.sandbox(), workspace.name().as_str(), &occasion, capture).await;
        let shots = shots.map_err(|error| NoPicture(error.to_string()))?;
        let picture = |shot: tools::Shot| Picture {
            device: shot.viewport,
            width: shot.width,
            height: shot.height,
            webp: shot.webp,
        };
        Ok(shots.shots.into_iter().map(picture).collect())
    }
}
