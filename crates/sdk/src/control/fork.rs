//! Forks: sandboxes that begin as copies of a running one.

use std::time::Duration;

use http::Method;
use protocol::rest;

use super::create::seconds;
use super::life::SandboxError;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::id::SandboxId;
use crate::sandbox::Sandbox;

/// How to fork; one child with the server's default lifetime unless set.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fork {
    body: rest::Fork,
}

impl Fork {
    pub fn new() -> Self {
        Self::default()
    }

    /// How many children, from 1 to 100; all of one moment of the source.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.body.count = Some(count);
        self
    }

    /// How long the children live from now.
    #[must_use]
    pub fn timeout(mut self, lifetime: Duration) -> Self {
        self.body.timeout = Some(seconds(lifetime));
        self
    }
}

/// A child that did not start. Its siblings may have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The server's word on this child; `status` is as of an answer of its own.
    #[error("a fork of sandbox {source_id} did not start: {message}")]
    NotStarted { source_id: SandboxId, status: u16, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Client {
    /// Starts copies of a running sandbox, which itself goes on as it is. The result has one entry a child.
    ///
    /// Not repeated after a lost answer: children that started end by their lifetime.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] when it does not run, or what may happen to any call.
    pub async fn fork(&self, id: &SandboxId, fork: Fork) -> Result<Vec<Result<Sandbox, ForkError>>, SandboxError> {
        let path = format!("/sandboxes/{id}/fork");
        let request = Request::new(self, Method::POST, path, format!("fork sandbox {id}")).body(&fork.body);
        let children = request.json::<Vec<rest::ForkResult>>().await;
        let children = children.map_err(|failure| SandboxError::of(failure, id, &request))?;
        let child = |result: rest::ForkResult| match result {
            rest::ForkResult { sandbox: Some(made), .. } => Ok(Sandbox::new(self, made)?),
            rest::ForkResult { error: Some(error), .. } => {
                Err(ForkError::NotStarted { source_id: id.clone(), status: error.code, message: error.message })
            }
            rest::ForkResult { sandbox: None, error: None } => {
                Err(request.call.misunderstood("a child is neither a sandbox nor an error".into()).into())
            }
        };
        Ok(children.into_iter().map(child).collect())
    }
}
