//! An MCP server in the process of a run. A workspace is open in one process at a time, so that MCP
//! clients join the process of the run; the workspace's gate orders the calls of all of them.

use super::workspace_source::WorkspaceHandle;
use super::{HttpListener, open_listener};
use crate::workspace::app::WorkspaceApp;
use async_trait::async_trait;
use mcp::{AcquiredSandbox, SandboxHandle, SandboxProvider, ServeError, Server, Settings};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tools::AcquireError;
use workspace::Workspace;

/// The running server. Dropping it aborts its task.
pub(crate) struct SharedMcpServer {
    stop: CancellationToken,
    serving: AbortOnDropHandle<Result<(), ServeError>>,
}

impl SharedMcpServer {
    /// Listens on `address`, and prints URL and token.
    pub(crate) async fn start(
        address: SocketAddr,
        app: &Arc<WorkspaceApp>,
        workspace: &Workspace,
        port: u16,
    ) -> anyhow::Result<Self> {
        let HttpListener { listener, access, message } = open_listener(address, &[], None).await?;
        // Not on stdout, which has the events of the run.
        eprintln!("sandbar: MCP clients can work in workspace {} too\n{message}", workspace.name());
        let handle = Arc::new(WorkspaceHandle::for_workspace(Arc::clone(app), workspace.clone(), port));
        let server = Server::new(Arc::new(SharedWorkspace(handle)), Settings::default());
        let stop = CancellationToken::new();
        let serving = AbortOnDropHandle::new(tokio::spawn(server.serve_http(listener, access, stop.clone())));
        Ok(Self { stop, serving })
    }

    /// Cancels the clients' calls, which get an error, and waits for the server to end.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        match self.serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("sandbar: the server for MCP clients failed: {error}"),
            Err(error) => tracing::error!(%error, "the server for MCP clients broke"),
        }
    }
}

/// Provides the workspace of the run, which is open as long as the run.
struct SharedWorkspace(Arc<WorkspaceHandle>);

#[async_trait]
impl SandboxProvider for SharedWorkspace {
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError> {
        Ok(AcquiredSandbox { handle: Arc::clone(&self.0) as Arc<dyn SandboxHandle>, notice: None })
    }

    async fn release(&self) {}
}
