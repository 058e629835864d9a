//! A sandbox's life by its id: look, connect, pause, extend, end.

use std::time::Duration;

use http::Method;
use protocol::rest;

use super::create::seconds;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::id::SandboxId;
use crate::sandbox::Sandbox;
use crate::transport::{Failure, Refusal};

/// Something that could not be done to a sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// It was killed, has ended, or never was.
    #[error("sandbox {id} does not exist")]
    NotFound { id: SandboxId },
    /// Not in the state it is in.
    #[error("sandbox {id}: {message}")]
    Conflict { id: SandboxId, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl SandboxError {
    pub(super) fn of(failure: Failure, id: &SandboxId, request: &Request<'_>) -> Self {
        match failure {
            Failure::Refused(Refusal { status: 404, .. }) => Self::NotFound { id: id.clone() },
            Failure::Refused(Refusal { status: 409, message, .. }) => Self::Conflict { id: id.clone(), message },
            other => Self::Call(other.into_error(&request.call)),
        }
    }
}

/// How to connect.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connect {
    body: rest::Connect,
}

impl Connect {
    /// It lives at least this long from now: a running one is extended, never shortened. Five minutes unless set.
    pub fn timeout(lifetime: Duration) -> Self {
        Self { body: rest::Connect { timeout: Some(seconds(lifetime)), memory: None } }
    }
}

impl Client {
    /// A sandbox that exists: a running one as it is, a paused one resumed.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], or what may happen to any call.
    pub async fn connect(&self, id: &SandboxId, connect: Connect) -> Result<Sandbox, SandboxError> {
        let mut body = connect.body;
        body.timeout.get_or_insert(300);
        let request = Request::new(self, Method::POST, format!("/v2/sandboxes/{id}/connect"), format!("connect to sandbox {id}"));
        let request = request.body(&body).harmless();
        match request.json_of_either::<rest::Sandbox>(&format!("/sandboxes/{id}/connect")).await {
            Ok(made) => Ok(Sandbox::new(self, made)?),
            Err(failure) => Err(SandboxError::of(failure, id, &request)),
        }
    }

    /// Everything the service knows of a sandbox.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], or what may happen to any call.
    pub async fn info(&self, id: &SandboxId) -> Result<rest::SandboxDetail, SandboxError> {
        let request = Request::new(self, Method::GET, format!("/sandboxes/{id}"), format!("look at sandbox {id}"));
        request.json().await.map_err(|failure| SandboxError::of(failure, id, &request))
    }

    /// Ends a sandbox and deletes its files. False when there was none.
    ///
    /// # Errors
    /// What may happen to any call.
    pub async fn kill(&self, id: &SandboxId) -> Result<bool, CallError> {
        let request = Request::new(self, Method::DELETE, format!("/sandboxes/{id}"), format!("kill sandbox {id}"));
        match request.send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }
}
