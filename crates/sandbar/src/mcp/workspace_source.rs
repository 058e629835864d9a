//! Provides one workspace to MCP clients. This process has it open while a client uses it.

use super::single_sandbox;
use crate::workspace::app::{EndAction, WorkspaceApp};
use async_trait::async_trait;
use mcp::{AcquiredSandbox, FileContents, ReadError, SandboxHandle, SandboxProvider};
use std::sync::Arc;
use tokio::sync::Mutex;
use tools::{AcquireError, ToolDispatcher};
use workspace::{Workspace, WorkspaceName};

pub(super) struct WorkspaceSource {
    app: Arc<WorkspaceApp>,
    name: WorkspaceName,
    end_action: EndAction,
    /// Set while a client uses the workspace.
    open: Mutex<Option<OpenWorkspace>>,
}

#[derive(Clone)]
struct OpenWorkspace {
    workspace: Workspace,
    port: Option<u16>,
}

impl WorkspaceSource {
    pub(super) fn new(app: Arc<WorkspaceApp>, name: WorkspaceName, end_action: EndAction) -> Self {
        Self { app, name, end_action, open: Mutex::default() }
    }

    async fn open_workspace(&self) -> anyhow::Result<OpenWorkspace> {
        let view = self.app.inspect(&self.name).await?;
        let workspace = self.app.enter(&self.name).await?;
        Ok(OpenWorkspace { workspace, port: view.dev_server.map(|server| server.port) })
    }
}

#[async_trait]
impl SandboxProvider for WorkspaceSource {
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError> {
        let mut open = self.open.lock().await;
        let current = match &*open {
            Some(current) => current.clone(),
            None => self
                .open_workspace()
                .await
                .map_err(|error| AcquireError(format!("There is nothing to work in: {error:#}.")))?,
        };
        *open = Some(current.clone());
        let handle = WorkspaceHandle { app: Arc::clone(&self.app), name: self.name.clone(), open: current };
        Ok(AcquiredSandbox { handle: Arc::new(handle), notice: None })
    }

    async fn release(&self) {
        let Some(OpenWorkspace { workspace, port }) = self.open.lock().await.take() else { return };
        self.app.finish(&workspace, port, self.end_action).await;
        drop(workspace);
        self.app.leave().await;
    }
}

/// A workspace that this process has open, for MCP clients.
pub(super) struct WorkspaceHandle {
    app: Arc<WorkspaceApp>,
    name: WorkspaceName,
    open: OpenWorkspace,
}

impl WorkspaceHandle {
    /// A handle on a workspace that a run of this process uses too.
    pub(super) fn for_workspace(app: Arc<WorkspaceApp>, workspace: Workspace, port: u16) -> Self {
        let name = workspace.name().clone();
        Self { app, name, open: OpenWorkspace { workspace, port: Some(port) } }
    }
}

#[async_trait]
impl SandboxHandle for WorkspaceHandle {
    /// The workspace's name, since its sandbox can be replaced.
    fn sandbox_id(&self) -> &str {
        self.name.as_str()
    }

    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher> {
        Arc::new(self.app.tools(&self.open.workspace, self.open.port).session(session))
    }

    async fn read(&self, path: &str, most: usize) -> Result<FileContents, ReadError> {
        let guard = self.open.workspace.enter().await.map_err(|error| ReadError::Failed(error.to_string()))?;
        single_sandbox::read(guard.sandbox(), path, most).await
    }
}
