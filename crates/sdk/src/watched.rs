//! A stream of the daemon that is watched: when it falls silent or breaks, the client finds out what has become of the
//! sandbox before it says how the stream ended.
//!
//! ```text
//! message, keepalive ──► the caller
//! two intervals of silence, broken connection ──► /health on a connection of its own
//!                           ├─ not running ──► why, from the control plane ──► Gone
//!                           └─ answers, or nobody does ───────────────────────► Lost
//! ```

use std::fmt;
use std::time::Duration;

use crate::envd::Health;
use crate::sandbox::Sandbox;
use crate::transport::connect::{Broken, Frame, Frames};
use protocol::rest::SandboxState;

/// For finding out what has become of a sandbox, when calls may take as long.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Why a sandbox does not answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GoneReason {
    /// It was killed, or its lifetime ended.
    Ended,
    /// It is paused; [`crate::Client::connect`] resumes it.
    Paused,
    /// The sandbox does not run, and the control plane did not say why.
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
    /// Asks the control plane why this sandbox does not run.
    pub(crate) async fn gone_reason(&self) -> GoneReason {
        match self.client().within(self.look_deadline()).info(self.id()).await {
            Ok(detail) if detail.listed.state == SandboxState::Paused => GoneReason::Paused,
            Ok(_) => GoneReason::Unknown,
            Err(crate::SandboxError::NotFound { .. }) => GoneReason::Ended,
            Err(_) => GoneReason::Unknown,
        }
    }

    /// What has become of this sandbox, of which a connection broke or fell silent.
    pub(crate) async fn fate(&self, cause: String) -> Ended {
        match self.envd().health(self.client().shared(), self.look_deadline()).await {
            Health::Gone => Ended::Gone(self.gone_reason().await),
            Health::Alive | Health::Unknown => Ended::Lost(cause),
        }
    }

    fn look_deadline(&self) -> Duration {
        LOOK_DEADLINE.min(self.client().deadline())
    }
}

/// How a stream ended that should not have.
#[derive(Debug)]
pub(crate) enum Ended {
    Gone(GoneReason),
    /// The sandbox lives or nobody knows.
    Lost(String),
    /// These are not the protocol's messages.
    Garbled(String),
}

#[derive(Debug)]
pub(crate) struct Watched {
    frames: Frames,
    patience: Duration,
    /// Seen to be broken, and not yet looked into: a caller that was cancelled meanwhile comes back to this.
    broken: Option<String>,
}

impl Watched {
    pub(crate) fn new(frames: Frames, sandbox: &Sandbox) -> Self {
        Self { frames, patience: sandbox.client().shared().keepalive * 2, broken: None }
    }

    /// The next message. Safe to cancel.
    pub(crate) async fn next(&mut self, sandbox: &Sandbox) -> Result<Frame, Ended> {
        if self.broken.is_none() {
            match self.frames.next(self.patience).await {
                Ok(frame) => return Ok(frame),
                Err(Broken::Garbled(detail)) => return Err(Ended::Garbled(detail)),
                Err(Broken::Lost(cause)) => self.broken = Some(cause),
                Err(Broken::Silent(patience)) => self.broken = Some(format!("no sign of life for {patience:?}")),
            }
        }
        Err(sandbox.fate(self.broken.clone().unwrap_or_default()).await)
    }

    pub(crate) async fn finish(self) {
        self.frames.finish().await;
    }
}
