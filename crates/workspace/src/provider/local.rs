//! The server of this machine. The program implements how to find and start it.

use async_trait::async_trait;
use sdk::Secret;

/// The address and key of a local server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalEndpoint {
    pub url: String,
    pub api_key: Secret,
}

/// There is no local server, and none could be started. The text gives the reason and the next
/// step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoLocalServer(pub String);

/// Finds the server of this machine, or starts it.
#[async_trait]
pub trait LocalServer: Send + Sync {
    /// Returns when the server accepts requests.
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer>;
}
