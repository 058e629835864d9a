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

/// Seconds a sandbox lives when nothing is said, as the official SDKs have it.
const LIFETIME: i64 = 300;
/// The one failure of a pause that the protocol names.
const UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";

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
    /// Its daemon does not answer, and the caller had asked for one that does.
    #[error("sandbox {id} is unresponsive: {message}")]
    Unresponsive { id: SandboxId, message: String },
    /// The service knows the sandbox and does not have its files: nothing of it can be resumed,
    /// forked or copied. Restore the files from a copy of your own in a new sandbox.
    #[error("sandbox {id} cannot be resumed: {message}")]
    FilesMissing { id: SandboxId, message: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl SandboxError {
    pub(super) fn of(failure: Failure, id: &SandboxId, request: &Request<'_>) -> Self {
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

/// What a pause keeps; files and memory by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause {
    body: rest::Pause,
}

impl Pause {
    /// Processes go on where they stopped.
    pub fn with_memory() -> Self {
        Self::default()
    }

    /// Processes end; the next start is a fresh one.
    pub fn files_only() -> Self {
        Self { body: rest::Pause { memory: Some(false), require_healthy_guest: None } }
    }

    /// Refuses with [`SandboxError::Unresponsive`] when the sandbox's daemon does not answer.
    #[must_use]
    pub fn require_healthy(mut self) -> Self {
        self.body.require_healthy_guest = Some(true);
        self
    }
}

/// What a pause found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseOutcome {
    Paused,
    AlreadyPaused,
}

/// How to resume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resume {
    body: rest::Resume,
}

impl Resume {
    /// It lives this long from now.
    pub fn timeout(lifetime: Duration) -> Self {
        Self { body: rest::Resume { timeout: Some(seconds(lifetime)), ..rest::Resume::default() } }
    }

    /// Pauses at the end of that life instead of being killed.
    #[must_use]
    pub fn pause_on_timeout(mut self) -> Self {
        self.body.auto_pause = Some(true);
        self
    }

    /// Starts from the files even if there is memory.
    #[must_use]
    pub fn files_only(mut self) -> Self {
        self.body.memory = Some(false);
        self
    }
}

/// What a service knows of a sandbox, at a moment of its own clock.
#[derive(Debug, Clone)]
pub struct Look {
    pub detail: rest::SandboxDetail,
    /// In whole seconds; none from a service that does not say what time it is.
    pub answered_at: Option<jiff::Timestamp>,
}

impl Look {
    /// How long it lives if nobody does anything, to the second below; zero when its time is over. None when the service
    /// does not tell.
    pub fn remaining(&self) -> Option<Duration> {
        let end = self.detail.listed.end_at.parse::<jiff::Timestamp>().ok()?;
        // The date leaves out what has passed of its second.
        let passed = self.answered_at?.saturating_add(jiff::SignedDuration::from_secs(1)).ok()?;
        Some(Duration::try_from(end.duration_since(passed)).unwrap_or_default())
    }
}

impl Client {
    /// A sandbox that exists: a running one as it is, a paused one resumed.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::FilesMissing`] when a paused one has lost its
    /// files, or what may happen to any call.
    pub async fn connect(&self, id: &SandboxId, connect: Connect) -> Result<Sandbox, SandboxError> {
        let mut body = connect.body;
        body.timeout.get_or_insert(LIFETIME);
        let request =
            Request::new(self, Method::POST, format!("/v2/sandboxes/{id}/connect"), format!("connect to sandbox {id}"));
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

    /// Everything the service knows of a sandbox, and when that was by the service's own clock. Its times are of that clock,
    /// which need not be ours: how long a sandbox still lives is the difference of two of them.
    ///
    /// # Errors
    /// As [`Client::info`].
    pub async fn look(&self, id: &SandboxId) -> Result<Look, SandboxError> {
        let request = Request::new(self, Method::GET, format!("/sandboxes/{id}"), format!("look at sandbox {id}"));
        let (detail, answered_at) =
            request.json_and_date().await.map_err(|failure| SandboxError::of(failure, id, &request))?;
        Ok(Look { detail, answered_at })
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

    /// Stops a sandbox and keeps it. Pausing one that is paused already is a success.
    ///
    /// Safe to repeat; after a repeat [`PauseOutcome::AlreadyPaused`] may mean that the first try did it.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Unresponsive`] when a healthy one is required, or what may happen to any
    /// call.
    pub async fn pause(&self, id: &SandboxId, pause: Pause) -> Result<PauseOutcome, SandboxError> {
        let path = format!("/sandboxes/{id}/pause");
        let request =
            Request::new(self, Method::POST, path, format!("pause sandbox {id}")).body(&pause.body).harmless();
        match request.send().await {
            Ok(_) => Ok(PauseOutcome::Paused),
            Err(Failure::Refused(refusal)) if refusal.status == 409 && !refusal.is(UNRESPONSIVE) => {
                Ok(PauseOutcome::AlreadyPaused)
            }
            Err(failure) => Err(SandboxError::of(failure, id, &request)),
        }
    }

    /// Wakes a paused sandbox. [`Client::connect`] does the same and takes running ones too.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], [`SandboxError::Conflict`] when it runs already,
    /// [`SandboxError::FilesMissing`], or what may happen to any call.
    pub async fn resume(&self, id: &SandboxId, resume: Resume) -> Result<Sandbox, SandboxError> {
        let mut body = resume.body;
        body.timeout.get_or_insert(LIFETIME);
        let path = format!("/sandboxes/{id}/resume");
        let request = Request::new(self, Method::POST, path, format!("resume sandbox {id}")).body(&body);
        match request.json::<rest::Sandbox>().await {
            Ok(made) => Ok(Sandbox::new(self, made)?),
            Err(failure) => Err(SandboxError::of(failure, id, &request)),
        }
    }

    /// Sets the end of a running sandbox's life to `lifetime` from now; this may shorten it, and zero ends it now.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], or what may happen to any call.
    pub async fn set_timeout(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError> {
        let body = rest::Timeout { timeout: seconds(lifetime) };
        let path = format!("/sandboxes/{id}/timeout");
        let request = Request::new(self, Method::POST, path, format!("set the timeout of sandbox {id}"));
        let request = request.body(&body).harmless();
        request.send().await.map(drop).map_err(|failure| SandboxError::of(failure, id, &request))
    }

    /// Makes a running sandbox live at least `lifetime` from now, an hour at most. Never shortens its life.
    ///
    /// # Errors
    /// [`SandboxError::NotFound`], or what may happen to any call.
    pub async fn refresh(&self, id: &SandboxId, lifetime: Duration) -> Result<(), SandboxError> {
        let body = rest::Refresh { duration: Some(seconds(lifetime)) };
        let path = format!("/sandboxes/{id}/refreshes");
        let request = Request::new(self, Method::POST, path, format!("refresh sandbox {id}")).body(&body).harmless();
        request.send().await.map(drop).map_err(|failure| SandboxError::of(failure, id, &request))
    }
}
