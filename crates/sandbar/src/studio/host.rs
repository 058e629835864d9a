//! The studio's host in this program: workspaces with an observer, tools with screenshots, and the
//! configured models.

use super::models::Models;
use crate::config::Config;
use crate::screenshots::ScreenshotService;
use crate::workspace::auto_screenshots::WorkspaceScreenshots;
use ::studio::{CapturedScreenshot, ChosenModel, ScreenshotFailed, StudioHost};
use agent::model::ChoiceError;
use agent::workspace_tools;
use async_trait::async_trait;
use browser::store::Occasion;
use std::sync::{Arc, OnceLock};
use tools::{ScreenshotRequest, ToolDispatcher};
use tracing::info;
use workspace::config::{Variables, WorkspaceConfig};
use workspace::events::{Observer, WorkspaceEvent};
use workspace::provider::LocalServer;
use workspace::{Settings, Workspace, Workspaces};

pub(super) struct LocalHost {
    workspaces: Workspaces,
    screenshots: Arc<ScreenshotService>,
    models: Models,
    events: Arc<EventForwarder>,
}

impl LocalHost {
    pub(super) async fn open(
        config: &Config,
        workspaces: &WorkspaceConfig,
        variables: Variables<'_>,
        local: &Arc<dyn LocalServer>,
        models: Models,
    ) -> anyhow::Result<Self> {
        let events = Arc::new(EventForwarder::default());
        let observer = Arc::clone(&events) as Arc<dyn Observer>;
        let workspaces = Workspaces::from_config(workspaces, variables, local, observer, Settings::default()).await?;
        Ok(Self { workspaces, screenshots: ScreenshotService::new(config), models, events })
    }

    /// Ends the browser.
    pub(super) async fn close(&self) {
        self.screenshots.close().await;
    }
}

/// Forwards events to the log, and to the studio once it is opened.
#[derive(Default)]
struct EventForwarder {
    studio: OnceLock<Arc<dyn Observer>>,
}

#[async_trait]
impl Observer for EventForwarder {
    async fn event(&self, event: &WorkspaceEvent) {
        let kind = serde_json::to_string(&event.kind).unwrap_or_default();
        info!(workspace = %event.workspace, event = kind, "a workspace's event");
        if let Some(studio) = self.studio.get() {
            studio.event(event).await;
        }
    }
}

#[async_trait]
impl StudioHost for LocalHost {
    fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        // A process has one studio, so this is set once.
        let _ = self.events.studio.set(observer);
    }

    fn tools(&self, workspace: &Workspace, preview_port: u16) -> Arc<dyn ToolDispatcher> {
        let name = workspace.name().clone();
        let screenshots = WorkspaceScreenshots::new(Arc::clone(&self.screenshots), self.workspaces.clone(), name);
        let tools = workspace_tools(workspace.clone()).screenshots(Arc::new(screenshots));
        Arc::new(tools.preview_port(preview_port))
    }

    fn model(&self, wanted: Option<&str>) -> Result<ChosenModel, ChoiceError> {
        self.models.choose(wanted)
    }

    fn models(&self) -> Vec<String> {
        self.models.names()
    }

    async fn take_screenshots(
        &self,
        workspace: &Workspace,
        port: u16,
    ) -> Result<Vec<CapturedScreenshot>, ScreenshotFailed> {
        let guard = workspace.enter().await.map_err(|error| ScreenshotFailed(error.to_string()))?;
        let occasion = Occasion::DevServer { at: jiff::Timestamp::now() };
        let capture = ScreenshotRequest { port, url_path: "/".to_owned(), full_page: false };
        let shots = self.screenshots.capture(guard.sandbox(), workspace.name().as_str(), &occasion, capture).await;
        let shots = shots.map_err(|error| ScreenshotFailed(error.to_string()))?;
        let captured = |shot: tools::Screenshot| CapturedScreenshot {
            device: shot.viewport,
            width: shot.width,
            height: shot.height,
            webp: shot.webp,
        };
        Ok(shots.screenshots.into_iter().map(captured).collect())
    }
}
