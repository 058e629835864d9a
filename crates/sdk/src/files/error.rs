//! Errors of file operations.

use std::error::Error;
use std::sync::Arc;

use crate::error::CallError;
use crate::sandbox::Sandbox;
use crate::transport::{Call, Failure};
use crate::watched::{GoneReason, StreamEnd};
use protocol::SandboxId;

/// A failed operation on a file of a sandbox.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    #[error("{path:?} does not exist in sandbox {id}")]
    NotFound { id: SandboxId, path: String },
    /// The path is invalid or of the wrong kind, or metadata is too long.
    #[error("{path:?} in sandbox {id}: {message}")]
    Invalid { id: SandboxId, path: String, message: String },
    /// Not valid UTF-8 from this byte on. [`super::Files::read`] returns the bytes.
    #[error("{path:?} in sandbox {id} is not UTF-8 from byte {at} on; read its bytes instead")]
    NotText { id: SandboxId, path: String, at: usize },
    /// The precondition failed: the content differs. Nothing was written.
    #[error("{path:?} in sandbox {id} has changed")]
    Changed { id: SandboxId, path: String },
    /// The sandbox's disk is full.
    #[error("no space is left for {path:?} in sandbox {id}")]
    NoSpace { id: SandboxId, path: String },
    /// Reading the content to upload failed. A part of it may be in the file.
    #[error("cannot read what is to be written to {path:?} in sandbox {id}")]
    Source { id: SandboxId, path: String, source: Arc<dyn Error + Send + Sync> },
    #[error("sandbox {id} {reason}")]
    SandboxGone { id: SandboxId, reason: GoneReason },
    /// The stream of a watch or a download broke while the sandbox lived. Retry; events in between
    /// are lost.
    #[error("the connection to {path:?} in sandbox {id} was lost: {cause}")]
    ConnectionLost { id: SandboxId, path: String, cause: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

impl FileError {
    pub(super) async fn from_failure(sandbox: &Sandbox, call: &Call, path: &str, failure: Failure) -> Self {
        let (id, path) = (sandbox.id().clone(), path.to_owned());
        match failure {
            Failure::Refused(refusal) if refusal.reports_sandbox_gone() => {
                Self::SandboxGone { id, reason: sandbox.gone_reason().await }
            }
            Failure::Refused(refusal) => match refusal.status {
                404 => Self::NotFound { id, path },
                400 => Self::Invalid { id, path, message: refusal.message },
                507 => Self::NoSpace { id, path },
                _ => Self::Call(refusal.into_error(call)),
            },
            Failure::Call(error) => Self::Call(error),
        }
    }

    pub(super) fn from_stream_end(sandbox: &Sandbox, call: &Call, path: &str, ended: StreamEnd) -> Self {
        let (id, path) = (sandbox.id().clone(), path.to_owned());
        match ended {
            StreamEnd::Gone(reason) => Self::SandboxGone { id, reason },
            StreamEnd::Lost(cause) => Self::ConnectionLost { id, path, cause },
            StreamEnd::Garbled(detail) => Self::Call(call.protocol_error(detail)),
        }
    }
}
