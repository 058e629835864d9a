//! Where the tools work, as far as this crate needs to know.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tools::ToolDispatcher;

/// Leads to one sandbox: an existing one, or one that is made when it is first needed.
#[async_trait]
pub trait Workplaces: Send + Sync {
    /// The sandbox, made or woken if need be. It stays alive until [`leave`](Self::leave). May be called again after that, and
    /// again when the sandbox turned out to be gone.
    async fn enter(&self) -> Result<Entered, EnterError>;

    /// Nobody works there for the time being. Leaving what was never entered does nothing.
    async fn leave(&self);
}

/// A sandbox to work in.
pub struct Entered {
    pub workplace: Arc<dyn Workplace>,
    /// What whoever works there should be told about it, once.
    pub notice: Option<String>,
}

/// Why there is nothing to work in. The text is for the model.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct EnterError(pub String);

/// One sandbox.
#[async_trait]
pub trait Workplace: Send + Sync {
    /// Its id.
    fn sandbox(&self) -> &str;

    /// Tools that share directory, variables, ledger and background tasks with everybody who uses the same session.
    fn tools(&self, session: &str) -> Arc<dyn ToolDispatcher>;

    /// A file's first bytes, at most `most`.
    async fn read(&self, path: &str, most: usize) -> Result<Contents, ReadError>;
}

/// What is in a file.
#[derive(Debug, Clone)]
pub struct Contents {
    pub bytes: Bytes,
    /// There is no more.
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
