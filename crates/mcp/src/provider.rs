//! Port to the sandbox that the tools work in.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tools::{AcquireError, ToolDispatcher};

/// Provides one sandbox: an existing one, or one created on first use.
#[async_trait]
pub trait SandboxProvider: Send + Sync {
    /// Creates or resumes the sandbox, and keeps it running until [`release`](Self::release). The
    /// caller may acquire again after a release, and when the sandbox is gone.
    ///
    /// # Errors
    /// [`AcquireError`] with a text for the model.
    async fn acquire(&self) -> Result<AcquiredSandbox, AcquireError>;

    /// Lets go of the sandbox. Does nothing if it was never acquired.
    async fn release(&self);
}

/// A sandbox that is ready for calls.
pub struct AcquiredSandbox {
    pub handle: Arc<dyn SandboxHandle>,
    /// Text for the client, shown once.
    pub notice: Option<String>,
}

/// One sandbox.
#[async_trait]
pub trait SandboxHandle: Send + Sync {
    fn sandbox_id(&self) -> &str;

    /// A dispatcher for `session`. Dispatchers of one session share working directory, variables,
    /// file cache and background tasks.
    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher>;

    /// Reads at most the first `limit` bytes of a file.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] if the file does not exist, else [`ReadError::Failed`].
    async fn read(&self, path: &str, limit: usize) -> Result<FileContents, ReadError>;
}

/// The beginning of a file.
#[derive(Debug, Clone)]
pub struct FileContents {
    pub bytes: Bytes,
    /// The file has no more bytes.
    pub whole: bool,
}

/// Why a file cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    #[error("it does not exist")]
    NotFound,
    #[error("{0}")]
    Failed(String),
}
