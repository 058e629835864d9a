//! The server of this machine. How it is found and started is the program's business.

use async_trait::async_trait;
use sdk::Secret;

/// Where a local server listens, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalEndpoint {
    pub url: String,
    pub api_key: Secret,
}

/// There is no local server, and none could be started. The text says why and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoLocalServer(pub String);

/// Finds the server of this machine, and starts it when there is none.
#[async_trait]
pub trait LocalServer: Send + Sync {
    /// Returns when it serves.
    async fn endpoint(&self) -> Result<LocalEndpoint, NoLocalServer>;
}
