//! Errors of commands.

use std::fmt;
use std::time::Duration;

use crate::error::CallError;
use crate::sandbox::Sandbox;
use crate::transport::{Call, Failure, Refusal};
use crate::watched::{GoneReason, StreamEnd};
use protocol::SandboxId;

/// How a process is addressed in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProcessName {
    Pid(u32),
    /// The tag set by [`super::Command::tag`].
    Tag(String),
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "pid {pid}"),
            Self::Tag(tag) => write!(f, "tag {tag:?}"),
        }
    }
}

impl From<u32> for ProcessName {
    fn from(pid: u32) -> Self {
        Self::Pid(pid)
    }
}

/// A command that was not started, or whose exit is unknown.
///
/// A command that ran and failed is not an error: its [`super::Exit`] reports the code.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No such process runs, or ended within the last 30 seconds.
    #[error("sandbox {id} has no process with {process}")]
    NotFound { id: SandboxId, process: ProcessName },
    /// The program or directory does not exist or is not accessible.
    #[error("cannot start the command in sandbox {id}: {message}")]
    NotStartable { id: SandboxId, message: String },
    /// Its standard input is closed or was never open, or it has no terminal.
    #[error("the process with {process} in sandbox {id} takes no such input: {message}")]
    InputRefused { id: SandboxId, process: ProcessName, message: String },
    /// The sandbox stopped, and its processes with it.
    #[error("sandbox {id} {reason}")]
    SandboxGone { id: SandboxId, reason: GoneReason },
    /// The connection broke or went silent while the sandbox lived.
    ///
    /// With a pid, [`super::Commands::connect`] reattaches to the process, and returns its exit
    /// until 30 seconds after its end. Without a pid it is unknown whether the command was started.
    #[error("the connection to a command in sandbox {id} was lost ({cause}); {}", describe_fate(*may_still_run))]
    ConnectionLost { id: SandboxId, may_still_run: Option<u32>, cause: String },
    /// It reached its timeout and was killed. `may_still_run` holds its pid when the kill could not
    /// be confirmed.
    #[error("the command in sandbox {id} did not end within {after:?}; {}", describe_kill(*may_still_run))]
    DeadlineExceeded { id: SandboxId, after: Duration, may_still_run: Option<u32> },
    /// The output exceeds the limit; stream it instead, or raise [`super::Command::output_limit`].
    #[error(
        "the process with pid {pid} in sandbox {id} gave more than {limit} bytes of output; stream it, or raise the limit"
    )]
    OutputTooLarge { id: SandboxId, pid: u32, limit: usize },
    #[error(transparent)]
    Call(#[from] CallError),
}

fn describe_fate(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("it may still run: connect to pid {pid}"),
        None => "whether it was started is not known".into(),
    }
}

fn describe_kill(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("it could not be killed and may still run as pid {pid}"),
        None => "it was killed".into(),
    }
}

impl CommandError {
    /// Maps a failed call about `process`.
    pub(crate) async fn from_call(sandbox: &Sandbox, call: &Call, process: ProcessName, failure: Failure) -> Self {
        let id = sandbox.id().clone();
        match failure {
            Failure::Refused(refusal) if refusal.reports_sandbox_gone() => Self::from_gone(sandbox).await,
            Failure::Refused(refusal) if refusal.is("not_found") => Self::NotFound { id, process },
            other => Self::Call(other.into_error(call)),
        }
    }

    /// Maps a start that failed before the process was known to run.
    pub(crate) async fn from_start(sandbox: &Sandbox, call: &Call, failure: Failure) -> Self {
        let id = sandbox.id().clone();
        match failure {
            Failure::Refused(refusal) if refusal.reports_sandbox_gone() => Self::from_gone(sandbox).await,
            Failure::Refused(Refusal { code: Some(code), message, .. }) if code == "invalid_argument" => {
                Self::NotStartable { id, message }
            }
            Failure::Call(CallError::ConnectionLost { cause, .. }) => {
                Self::from_stream_end(sandbox, call, None, sandbox.diagnose(cause).await)
            }
            other => Self::Call(other.into_error(call)),
        }
    }

    /// Maps a stream that ended prematurely.
    pub(crate) fn from_stream_end(sandbox: &Sandbox, call: &Call, pid: Option<u32>, ended: StreamEnd) -> Self {
        let id = sandbox.id().clone();
        match ended {
            StreamEnd::Gone(reason) => Self::SandboxGone { id, reason },
            StreamEnd::Lost(cause) => Self::ConnectionLost { id, may_still_run: pid, cause },
            StreamEnd::Garbled(detail) => Self::Call(call.protocol_error(detail)),
        }
    }

    async fn from_gone(sandbox: &Sandbox) -> Self {
        Self::SandboxGone { id: sandbox.id().clone(), reason: sandbox.gone_reason().await }
    }
}
