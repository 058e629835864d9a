//! MCP clients beside a run: a workspace belongs to one process at a time, so whoever wants to work there while a run does joins
//! the run's process. The workspace's fence keeps all of them in order.

use super::residence::Room;
use super::{Open, open};
use crate::workspace::house::House;
use async_trait::async_trait;
use mcp::{EnterError, Entered, ServeError, Server, Settings, Workplace, Workplaces};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use workspace::Workspace;

/// A server for such clients. Dropping it ends it at once.
pub(crate) struct Beside {
    stop: CancellationToken,
    serving: AbortOnDropHandle<Result<(), ServeError>>,
}

impl Beside {
    /// Begins to serve, and says where.
    pub(crate) async fn begin(
        address: SocketAddr,
        house: &Arc<House>,
        workspace: &Workspace,
        port: u16,
    ) -> anyhow::Result<Self> {
        let Open { listener, access, said } = open(address, &[], None).await?;
        // The output belongs to the run.
        eprintln!("sandbar: MCP clients can work in workspace {} too\n{said}", workspace.name());
        let room = Arc::new(Room::shared(Arc::clone(house), workspace.clone(), port));
        let server = Server::new(Arc::new(Shared(room)), Settings::default());
        let stop = CancellationToken::new();
        let serving = AbortOnDropHandle::new(tokio::spawn(server.http(listener, access, stop.clone())));
        Ok(Self { stop, serving })
    }

    /// Ends the clients' calls, so that they can be told, and then the server.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        match self.serving.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("sandbar: the server for MCP clients failed: {error}"),
            Err(error) => tracing::error!(%error, "the server for MCP clients broke"),
        }
    }
}

/// The workspace is open as long as the run is.
struct Shared(Arc<Room>);

#[async_trait]
impl Workplaces for Shared {
    async fn enter(&self) -> Result<Entered, EnterError> {
        Ok(Entered { workplace: Arc::clone(&self.0) as Arc<dyn Workplace>, notice: None })
    }

    async fn leave(&self) {}
}
