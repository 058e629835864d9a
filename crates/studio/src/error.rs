//! What the studio cannot do, by what the caller can do about it.

use std::error::Error;

use crate::job::Status;
use crate::records::RecordsError;

/// Asked before a rebuild.
pub const REBUILD_QUESTION: &str = "This will use 1 build credit. Continue?";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudioError {
    /// Unknown, somebody else's, or without what was asked for.
    #[error("there is no such thing")]
    NotFound,
    /// Wait until it is ready.
    #[error("the build is {status}, not ready")]
    NotReady { status: Status },
    #[error("no build credit is left")]
    NoCredits,
    /// Ask the user, then confirm.
    #[error("{question}")]
    ConfirmNeeded { question: &'static str },
    /// Rebuild.
    #[error("The sandbox has expired and can't be recovered.")]
    SandboxExpired,
    /// Try again, or rebuild.
    #[error("The sandbox couldn't be reached. It may be corrupted.")]
    SandboxUnreachable,
    /// The sandbox runs: mend the application there, or with another build.
    #[error("The application does not start: {reason}")]
    ApplicationFailed {
        reason: String,
        /// The end of what the application's server wrote.
        output: String,
    },
    /// Raise the limit, or wait for the next period.
    #[error("{limit} is used up")]
    OverBudget { limit: String },
    /// Build in that project, or choose another name.
    #[error("there is already a project named {name:?}")]
    ProjectExists { name: String },
    #[error("{field}: {message}")]
    Invalid { field: &'static str, message: String },
    /// Resume it first.
    #[error("the sandbox sleeps; resume the preview first")]
    Asleep,
    /// Something else happened first.
    #[error("{0}")]
    Conflict(String),
    /// Nothing is known to be done; try again.
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
