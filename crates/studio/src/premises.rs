//! What the studio needs of the program around it: workspaces, tools, models and somebody who takes pictures.

use std::sync::Arc;

use agent::Model;
use agent::model::ChoiceError;
use async_trait::async_trait;
use bytes::Bytes;
use tools::ToolDispatcher;
use workspace::events::Observer;
use workspace::{Workspace, Workspaces};

/// A model that can be used.
#[derive(Clone)]
pub struct Chosen {
    /// As [`agent::model::Choice`] reads it, in any directory.
    pub name: String,
    pub model: Arc<dyn Model>,
}

/// A page as a device shows it.
#[derive(Debug, Clone)]
pub struct Picture {
    /// `desktop` or `mobile`.
    pub device: String,
    pub width: u32,
    pub height: u32,
    pub webp: Bytes,
}

/// There is no picture.
#[derive(Debug, thiserror::Error)]
#[error("no picture could be taken: {0}")]
pub struct NoPicture(pub String);

/// Where the studio works. Implemented by the program.
#[async_trait]
pub trait Premises: Send + Sync {
    fn workspaces(&self) -> &Workspaces;

    /// From now on tells this one, too, what happens to workspaces.
    fn observe(&self, observer: Arc<dyn Observer>);

    /// The tools of an agent in a workspace; pictures are of that port unless a call says otherwise.
    fn tools(&self, workspace: &Workspace, preview_port: u16) -> Arc<dyn ToolDispatcher>;

    /// The model that is named, or the default.
    ///
    /// # Errors
    /// It is none, or has no key.
    fn model(&self, wanted: Option<&str>) -> Result<Chosen, ChoiceError>;

    /// Those a user can choose from, the default first.
    fn models(&self) -> Vec<String>;

    /// Pictures of the page that a running workspace serves, one a device.
    async fn photograph(&self, workspace: &Workspace, port: u16) -> Result<Vec<Picture>, NoPicture>;
}
