//! The port to the program that runs the studio: workspaces, tools, models and screenshots.

use std::sync::Arc;

use agent::Model;
use agent::model::ChoiceError;
use async_trait::async_trait;
use bytes::Bytes;
use tools::ToolDispatcher;
use workspace::events::Observer;
use workspace::{Workspace, Workspaces};

/// A model that is configured and can be called.
#[derive(Clone)]
pub struct ChosenModel {
    /// The name that [`agent::model::ModelChoice`] parses. It does not depend on the working
    /// directory.
    pub name: String,
    pub model: Arc<dyn Model>,
}

/// A screenshot of a page in the viewport of one device.
#[derive(Debug, Clone)]
pub struct CapturedScreenshot {
    /// `desktop` or `mobile`.
    pub device: String,
    pub width: u32,
    pub height: u32,
    pub webp: Bytes,
}

/// The screenshot was not taken.
#[derive(Debug, thiserror::Error)]
#[error("no picture could be taken: {0}")]
pub struct ScreenshotFailed(pub String);

/// What the studio needs from the program. The program implements it.
#[async_trait]
pub trait StudioHost: Send + Sync {
    fn workspaces(&self) -> &Workspaces;

    /// Registers an observer of workspace events, in addition to those registered before.
    fn observe(&self, observer: Arc<dyn Observer>);

    /// The tools of an agent in a workspace. Screenshots show `preview_port` unless a call names
    /// another port.
    fn tools(&self, workspace: &Workspace, preview_port: u16) -> Arc<dyn ToolDispatcher>;

    /// The model named `wanted`, or the default model.
    ///
    /// # Errors
    /// [`ChoiceError`] when no such model exists or it has no API key.
    fn model(&self, wanted: Option<&str>) -> Result<ChosenModel, ChoiceError>;

    /// The models that a user can choose, the default first.
    fn models(&self) -> Vec<String>;

    /// Takes one screenshot per device of the page that a running workspace serves.
    async fn take_screenshots(
        &self,
        workspace: &Workspace,
        port: u16,
    ) -> Result<Vec<CapturedScreenshot>, ScreenshotFailed>;
}
