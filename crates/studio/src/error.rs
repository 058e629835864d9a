//! Errors of the studio. Each variant says what the caller can do.

use std::error::Error;

use crate::job::Status;
use crate::records::RecordsError;

/// The question that a user confirms before a rebuild.
pub const REBUILD_QUESTION: &str = "This will use 1 build credit. Continue?";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudioError {
    /// The job, project, snapshot or file does not exist, or belongs to another user.
    #[error("there is no such thing")]
    NotFound,
    /// The caller waits until the build is ready.
    #[error("the build is {status}, not ready")]
    NotReady { status: Status },
    #[error("no build credit is left")]
    NoCredits,
    /// The caller asks the user and sends the request again with `confirm`.
    #[error("{question}")]
    ConfirmNeeded { question: &'static str },
    /// The caller rebuilds.
    #[error("The sandbox has expired and can't be recovered.")]
    SandboxExpired,
    /// The caller retries or rebuilds.
    #[error("The sandbox couldn't be reached. It may be corrupted.")]
    SandboxUnreachable,
    /// The sandbox runs: the user fixes the application there or with another build.
    #[error("The application does not start: {reason}")]
    ApplicationFailed {
        reason: String,
        /// The end of the application server's log.
        output: String,
    },
    /// The operator raises the limit, or the caller waits for the next period.
    #[error("{limit} is used up")]
    OverBudget { limit: String },
    /// The caller builds in that project or chooses another name.
    #[error("there is already a project named {name:?}")]
    ProjectExists { name: String },
    #[error("{field}: {message}")]
    Invalid { field: &'static str, message: String },
    /// The caller resumes the sandbox first.
    #[error("the sandbox sleeps; resume the preview first")]
    SandboxPaused,
    /// Another operation came first. The caller retries.
    #[error("{0}")]
    Conflict(String),
    /// The operation may or may not have been executed. The caller retries.
    #[error("the studio cannot do that now")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}

impl StudioError {
    pub(crate) fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(error.into())
    }

    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, message: message.into() }
    }
}

impl From<RecordsError> for StudioError {
    fn from(error: RecordsError) -> Self {
        Self::unavailable(error)
    }
}
