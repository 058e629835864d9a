//! Forks: new sandboxes copied from a running one.

use std::time::Duration;

use http::Method;
use protocol::{SandboxId, rest};

use super::create::seconds;
use super::life::SandboxError;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::sandbox::Sandbox;

/// Fork options; one child with the server's default lifetime by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fork {
    body: rest::Fork,
}

impl Fork {
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of children, from 1 to 100, all copied from the same moment of the source.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.body.count = Some(count);
        self
    }

    /// Lifetime of the children from now.
    #[must_use]
    pub fn timeout(mut self, lifetime: Duration) -> Self {
        self.body.timeout = Some(seconds(lifetime));
        self
    }
}

/// A child that did not start. Its siblings may have started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The server's error for this child; `status` is like the status of a separate response.
    #[error("a fork of sandbox {source_id} did not start: {message}")]
    NotStarted { source_id: SandboxId, status: u16, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Client {
    /// Starts copies of a running sandbox, which continues to run. The result has one entry per
    /// child.
    ///
    /// Not retried after a lost response: children that started end with their lifetime.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] when it does not run,
    /// [`SandboxError::Call`].
    pub async fn fork(&self, id: &SandboxId, fork: Fork) -> Result<Vec<Result<Sandbox, ForkError>>, SandboxError> {
        let path = format!("/sandboxes/{id}/fork");
        let request = Request::new(self, Method::POST, path, format!("fork sandbox {id}")).body(&fork.body);
        let children = request.json::<Vec<rest::ForkResult>>().await;
        let children = children.map_err(|failure| SandboxError::from_failure(failure, id, &request))?;
        let child = |result: rest::ForkResult| match result {
            rest::ForkResult { sandbox: Some(made), .. } => Ok(Sandbox::new(self, made)?),
            rest::ForkResult { error: Some(error), .. } => {
                Err(ForkError::NotStarted { source_id: id.clone(), status: error.code, message: error.message })
            }
            rest::ForkResult { sandbox: None, error: None } => {
                Err(request.call.protocol_error("a child is neither a sandbox nor an error".into()).into())
            }
        };
        Ok(children.into_iter().map(child).collect())
    }
}
