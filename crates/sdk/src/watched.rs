//! A monitored stream of the daemon: when it goes silent or breaks, the client checks the sandbox
//! before it reports how the stream ended.
//!
//! ```text
//! message, keepalive ──► the caller
//! two intervals of silence, broken connection ──► /health on a new connection
//!                           ├─ not running ──► reason, from the control plane ──► Gone
//!                           └─ responds, or no response ─────────────────────────► Lost
//! ```

use std::fmt;
use std::time::Duration;

use crate::envd::Health;
use crate::sandbox::Sandbox;
use crate::transport::connect::{EnvelopeStream, Frame, StreamError};
use protocol::rest::SandboxState;

/// Limit of the checks after a broken stream, unless calls have a shorter deadline.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a sandbox no longer responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoneReason {
    /// It was killed, or its lifetime ended.
    Ended,
    /// It is paused; [`crate::Client::connect`] resumes it.
    Paused,
    /// The sandbox does not run, and the control plane did not report why.
    Unknown,
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ended => "was killed or reached the end of its lifetime; create another",
            Self::Paused => "is paused; connect to it to resume it",
            Self::Unknown => "is not running",
        })
    }
}

impl Sandbox {
    /// Queries the control plane for why this sandbox does not run.
    pub(crate) async fn gone_reason(&self) -> GoneReason {
        match self.client().within(self.health_timeout()).info(self.id()).await {
            Ok(detail) if detail.listed.state == SandboxState::Paused => GoneReason::Paused,
            Ok(_) => GoneReason::Unknown,
            Err(crate::SandboxError::NotFound { .. }) => GoneReason::Ended,
            Err(_) => GoneReason::Unknown,
        }
    }

    /// Checks this sandbox after a connection broke or went silent.
    pub(crate) async fn diagnose(&self, cause: String) -> StreamEnd {
        match self.envd().health(self.client().shared(), self.health_timeout()).await {
            Health::Gone => StreamEnd::Gone(self.gone_reason().await),
            Health::Alive | Health::Unknown => StreamEnd::Lost(cause),
        }
    }

    fn health_timeout(&self) -> Duration {
        HEALTH_TIMEOUT.min(self.client().deadline())
    }
}

/// How a stream ended prematurely.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    Gone(GoneReason),
    /// The sandbox runs, or its state is unknown.
    Lost(String),
    /// The messages violate the protocol.
    Garbled(String),
}

#[derive(Debug)]
pub(crate) struct WatchedStream {
    frames: EnvelopeStream,
    idle_timeout: Duration,
    /// The cause of a break that was not diagnosed yet: a cancelled caller resumes here.
    broken: Option<String>,
}

impl WatchedStream {
    pub(crate) fn new(frames: EnvelopeStream, sandbox: &Sandbox) -> Self {
        Self { frames, idle_timeout: sandbox.client().shared().keepalive * 2, broken: None }
    }

    /// The next message. Cancel safe.
    pub(crate) async fn next(&mut self, sandbox: &Sandbox) -> Result<Frame, StreamEnd> {
        if self.broken.is_none() {
            match self.frames.next(self.idle_timeout).await {
                Ok(frame) => return Ok(frame),
                Err(StreamError::Garbled(detail)) => return Err(StreamEnd::Garbled(detail)),
                Err(StreamError::Lost(cause)) => self.broken = Some(cause),
                Err(StreamError::Silent(idle_timeout)) => {
                    self.broken = Some(format!("no sign of life for {idle_timeout:?}"));
                }
            }
        }
        Err(sandbox.diagnose(self.broken.clone().unwrap_or_default()).await)
    }

    pub(crate) async fn finish(self) {
        self.frames.finish().await;
    }
}
