//! Lifecycle of a sandbox by its id: inspect, connect, pause, resume, extend, kill.

use std::time::Duration;

use http::Method;
use protocol::{SandboxId, rest};

use super::create::seconds;
use super::request::Request;
use crate::client::Client;
use crate::error::CallError;
use crate::sandbox::Sandbox;
use crate::transport::{Failure, Refusal};

/// Default lifetime in seconds; the official SDKs use the same.
const LIFETIME: i64 = 300;
/// The only pause failure with an error code in the protocol.
const UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

/// A failed operation on a sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// It was killed, has ended, or never existed.
    #[error("sandbox {id} does not exist")]
    NotFound { id: SandboxId },
    /// Not possible in its current state.
    #[error("sandbox {id}: {message}")]
    Conflict { id: SandboxId, message: String },
    /// Its daemon does not respond, and the caller required a healthy one.
    #[error("sandbox {id} is unresponsive: {message}")]
    Unresponsive { id: SandboxId, message: String },
    /// The service has a record of the sandbox but not its files: it cannot be resumed, forked or
    /// copied. Restore the files from your own copy into a new sandbox.
    #[error("sandbox {id} cannot be resumed: {message}")]
    FilesMissing { id: SandboxId, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl SandboxError {
    pub(super) fn from_failure(failure: Failure, id: &SandboxId, request: &Request<'_>) -> Self {
        match failure {
            Failure::Refused(refusal) if refusal.is(UNRESPONSIVE) => {
                Self::Unresponsive { id: id.clone(), message: refusal.message }
            }
            Failure::Refused(refusal) if refusal.is(rest::SANDBOX_FILES_MISSING) => {
                Self::FilesMissing { id: id.clone(), message: refusal.message }
            }
            Failure::Refused(Refusal { status: 404, .. }) => Self::NotFound { id: id.clone() },
            Failure::Refused(Refusal { status: 409, message, .. }) => Self::Conflict { id: id.clone(), message },
            other => Self::Call(other.into_error(&request.call)),
        }
    }
}

/// Options of a connect.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connect {
    body: rest::Connect,
}

impl Connect {
    /// Its minimum lifetime from now: a running sandbox is extended, never shortened. Five minutes
    /// by default.
    pub fn timeout(lifetime: Duration) -> Self {
        Self { body: rest::Connect { timeout: Some(seconds(lifetime)), memory: None } }
    }
}

/// What a pause preserves; files and memory by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause {
    body: rest::Pause,
}

impl Pause {
    /// Processes continue after resume.
    pub fn with_memory() -> Self {
        Self::default()
    }

    /// Processes end; the next resume boots from the files.
    pub fn files_only() -> Self {
        Self { body: rest::Pause { memory: Some(false), require_healthy_guest: None } }
    }

    /// Refuses with [`SandboxError::Unresponsive`] when the sandbox's daemon does not respond.
    #[must_use]
    pub fn require_healthy(mut self) -> Self {
        self.body.require_healthy_guest = Some(true);
        self
    }
}

/// The result of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseOutcome {
    Paused,
    AlreadyPaused,
}

/// Options of a resume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resume {
    body: rest::Resume,
}

impl Resume {
    /// Its lifetime from now.
    pub fn timeout(lifetime: Duration) -> Self {
        Self { body: rest::Resume { timeout: Some(seconds(lifetime)), ..rest::Resume::default() } }
    }

    /// Pauses it at the end of that lifetime instead of killing it.
    #[must_use]
    pub fn pause_on_timeout(mut self) -> Self {
        self.body.auto_pause = Some(true);
        self
    }

    /// Boots from the files even if memory was saved.
    #[must_use]
    pub fn files_only(mut self) -> Self {
        self.body.memory = Some(false);
        self
    }
}

/// The state of a sandbox with the time of the service's clock.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub detail: rest::SandboxDetail,
    /// In whole seconds; [`None`] when the response has no date.
    pub answered_at: Option<jiff::Timestamp>,
}

impl Inspection {
    /// The remaining lifetime, rounded down to seconds; zero when it has expired. [`None`] when the
    /// service does not report it.
    pub fn remaining(&self) -> Option<Duration> {
        let end = self.detail.listed.end_at.parse::<jiff::Timestamp>().ok()?;
        // The date is truncated to seconds, so add one.
        let passed = self.answered_at?.saturating_add(jiff::SignedDuration::from_secs(1)).ok()?;
        Some(Duration::try_from(end.duration_since(passed)).unwrap_or_default())
    }
}

impl Client {
    /// Connects to a sandbox; resumes it when paused.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::FilesMissing`] when a paused sandbox has lost
    /// its files, [`SandboxError::Call`].
    pub async fn connect(&self, id: &SandboxId, connect: Connect) -> Result<Sandbox, SandboxError> {
        let mut body = connect.body;
        body.timeout.get_or_insert(LIFETIME);
        let request =
            Request::new(self, Method::POST, format!("/v2/sandboxes/{id}/connect"), format!("connect to sandbox {id}"));
        let request = request.body(&body).idempotent();
        match request.json_with_v1_fallback::<rest::Sandbox>(&format!("/sandboxes/{id}/connect")).await {
            Ok(made) => Ok(Sandbox::new(self, made)?),
            Err(failure) => Err(SandboxError::from_failure(failure, id, &request)),
        }
    }

    /// All details of a sandbox.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Call`].
    pub async fn info(&self, id: &SandboxId) -> Result<rest::SandboxDetail, SandboxError> {
        let request = Request::new(self, Method::GET, format!("/sandboxes/{id}"), format!("inspect sandbox {id}"));
        request.json().await.map_err(|failure| SandboxError::from_failure(failure, id, &request))
    }

    /// All details of a sandbox, and the time of the response by the service's clock. Compute the
    /// remaining lifetime from these two, because the local clock may differ.
    ///
    /// # Errors
    /// Those of [`Client::info`].
    pub async fn inspect(&self, id: &SandboxId) -> Result<Inspection, SandboxError> {
        let request = Request::new(self, Method::GET, format!("/sandboxes/{id}"), format!("inspect sandbox {id}"));
        let (detail, answered_at) =
            request.json_and_date().await.map_err(|failure| SandboxError::from_failure(failure, id, &request))?;
        Ok(Inspection { detail, answered_at })
    }

    /// Kills a sandbox and deletes its files. Returns false when it did not exist.
    ///
    /// # Errors
    /// Any [`CallError`].
    pub async fn kill(&self, id: &SandboxId) -> Result<bool, CallError> {
        let request = Request::new(self, Method::DELETE, format!("/sandboxes/{id}"), format!("kill sandbox {id}"));
        match request.send().await {
            Ok(_) => Ok(true),
            Err(Failure::Refused(Refusal { status: 404, .. })) => Ok(false),
            Err(failure) => Err(failure.into_error(&request.call)),
        }
    }

    /// Pauses a sandbox. Pausing a paused sandbox succeeds.
    ///
    /// Idempotent; after a retry [`PauseOutcome::AlreadyPaused`] may mean that the first attempt
    /// paused it.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Unresponsive`] when a healthy daemon is
    /// required, [`SandboxError::Call`].
    pub async fn pause(&self, id: &SandboxId, pause: Pause) -> Result<PauseOutcome, SandboxError> {
        let path = format!("/sandboxes/{id}/pause");
        let request =
            Request::new(self, Method::POST, path, format!("pause sandbox {id}")).body(&pause.body).idempotent();
        match request.send().await {
            Ok(_) => Ok(PauseOutcome::Paused),
            Err(Failure::Refused(refusal)) if refusal.status == 409 && !refusal.is(UNRESPONSIVE) => {
                Ok(PauseOutcome::AlreadyPaused)
            }
            Err(failure) => Err(SandboxError::from_failure(failure, id, &request)),
        }
    }

    /// Resumes a paused sandbox. [`Client::connect`] does the same and accepts running ones too.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] when it already runs,
    /// [`SandboxError::FilesMissing`], [`SandboxError::Call`].
    pub async fn resume(&self, id: &SandboxId, resume: Resume) -> Result<Sandbox, SandboxError> {
        let mut body = resume.body;
        body.timeout.get_or_insert(LIFETIME);
        let path = format!("/sandboxes/{id}/resume");
        let request = Request::new(self, Method::POST, path, format!("resume sandbox {id}")).body(&body);
        match request.json::<rest::Sandbox>().await {
            Ok(made) => Ok(Sandbox::new(self, made)?),
            Err(failure) => Err(SandboxError::from_failure(failure, id, &request)),
        }
    }

    /// Sets the remaining lifetime of a running sandbox; this may shorten it, and zero ends it now.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Call`].
    pub async fn set_timeout(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError> {
        let body = rest::Timeout { timeout: seconds(lifetime) };
        let path = format!("/sandboxes/{id}/timeout");
        let request = Request::new(self, Method::POST, path, format!("set the timeout of sandbox {id}"));
        let request = request.body(&body).idempotent();
        request.send().await.map(drop).map_err(|failure| SandboxError::from_failure(failure, id, &request))
    }

    /// Extends a running sandbox to at least `lifetime` from now, at most one hour. Never shortens
    /// it.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Call`].
    pub async fn refresh(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError> {
        let body = rest::Refresh { duration: Some(seconds(lifetime)) };
        let path = format!("/sandboxes/{id}/refreshes");
        let request = Request::new(self, Method::POST, path, format!("refresh sandbox {id}")).body(&body).idempotent();
        request.send().await.map(drop).map_err(|failure| SandboxError::from_failure(failure, id, &request))
    }
}
