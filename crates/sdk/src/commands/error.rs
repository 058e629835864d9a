//! What can go wrong with a command.

use std::fmt;
use std::time::Duration;

use crate::error::CallError;
use crate::id::SandboxId;
use crate::sandbox::Sandbox;
use crate::transport::{Call, Failure, Refusal};
use crate::watched::{Ended, GoneReason};

/// How a process is named in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ProcessName {
    Pid(u32),
    /// What [`super::Command::tag`] said.
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

/// A command that was not started, or whose end is not known.
///
/// A command that ran and failed is no error: its [`super::Exit`] says so.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// No process of that name runs, or ended within the last half minute.
    #[error("sandbox {id} has no process with {process}")]
    NotFound { id: SandboxId, process: ProcessName },
    /// The program or directory does not exist, or may not be used.
    #[error("cannot start the command in sandbox {id}: {message}")]
    NotStartable { id: SandboxId, message: String },
    /// Its standard input is closed or was never open, or it has no terminal.
    #[error("the process with {process} in sandbox {id} takes no such input: {message}")]
    InputRefused { id: SandboxId, process: ProcessName, message: String },
    /// The sandbox stopped, and with it whatever ran in it.
    #[error("sandbox {id} {reason}")]
    SandboxGone { id: SandboxId, reason: GoneReason },
    /// The connection broke or fell silent while the sandbox lived.
    ///
    /// With a pid, [`super::Commands::connect`] takes the process up again, and until half a minute after its end also
    /// gives its exit. Without one it is not known whether the command was started.
    #[error("the connection to a command in sandbox {id} was lost ({cause}); {}", fate(*may_still_run))]
    ConnectionLost { id: SandboxId, may_still_run: Option<u32>, cause: String },
    /// It reached its timeout and was killed. `may_still_run` has its pid when the server could not be asked to.
    #[error("the command in sandbox {id} did not end within {after:?}; {}", end(*may_still_run))]
    DeadlineExceeded { id: SandboxId, after: Duration, may_still_run: Option<u32> },
    /// More output came than is collected; stream it instead, or raise [`super::Command::output_limit`].
    #[error(
        "the process with pid {pid} in sandbox {id} gave more than {limit} bytes of output; stream it, or raise the limit"
    )]
    OutputTooLarge { id: SandboxId, pid: u32, limit: usize },
    #[error(transparent)]
    Call(#[from] CallError),
}

fn fate(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("it may still run: connect to pid {pid}"),
        None => "whether it was started is not known".into(),
    }
}

fn end(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("it could not be killed and may still run as pid {pid}"),
        None => "it was killed".into(),
    }
}

impl CommandError {
    /// A call about `process` that failed.
    pub(crate) async fn of_call(sandbox: &Sandbox, call: &Call, process: ProcessName, failure: Failure) -> Self {
        let id = sandbox.id().clone();
        match failure {
            Failure::Refused(refusal) if refusal.says_sandbox_is_gone() => Self::gone(sandbox).await,
            Failure::Refused(refusal) if refusal.is("not_found") => Self::NotFound { id, process },
            other => Self::Call(other.into_error(call)),
        }
    }

    /// A start that failed before the process was seen to run.
    pub(crate) async fn of_start(sandbox: &Sandbox, call: &Call, failure: Failure) -> Self {
        let id = sandbox.id().clone();
        match failure {
            Failure::Refused(refusal) if refusal.says_sandbox_is_gone() => Self::gone(sandbox).await,
            Failure::Refused(Refusal { code: Some(code), message, .. }) if code == "invalid_argument" => {
                Self::NotStartable { id, message }
            }
            Failure::Call(CallError::ConnectionLost { cause, .. }) => {
                Self::of_end(sandbox, call, None, sandbox.fate(cause).await)
            }
            other => Self::Call(other.into_error(call)),
        }
    }

    /// A stream that ended too early.
    pub(crate) fn of_end(sandbox: &Sandbox, call: &Call, pid: Option<u32>, ended: Ended) -> Self {
        let id = sandbox.id().clone();
        match ended {
            Ended::Gone(reason) => Self::SandboxGone { id, reason },
            Ended::Lost(cause) => Self::ConnectionLost { id, may_still_run: pid, cause },
            Ended::Garbled(detail) => Self::Call(call.misunderstood(detail)),
        }
    }

    async fn gone(sandbox: &Sandbox) -> Self {
        Self::SandboxGone { id: sandbox.id().clone(), reason: sandbox.gone_reason().await }
    }
}
