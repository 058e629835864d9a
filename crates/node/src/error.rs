//! Errors of the node, distinguished by what the caller can do about them.

use std::fmt;
use std::path::PathBuf;

use engine::EngineError;
use protocol::SandboxId;

use crate::lifecycle::State;
use crate::ports::RecordsError;

/// A call on one sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("sandbox {0} does not exist")]
    NotFound(SandboxId),
    #[error("sandbox {id} is {state}, not running")]
    NotRunning { id: SandboxId, state: State },
    #[error("sandbox {0} is already paused")]
    AlreadyPaused(SandboxId),
    #[error("sandbox {0} is already running")]
    AlreadyRunning(SandboxId),
    #[error("the guest of sandbox {0} does not answer")]
    GuestUnresponsive(SandboxId),
    #[error("{limit} sandboxes hold memory on this machine, which is the most it allows")]
    Full { limit: usize },
    /// The volume was deleted while a sandbox that mounts it was being created.
    #[error("volume '{0}' not found")]
    VolumeGone(String),
    /// A record names files that the pool does not have. The server never replaces them by empty
    /// ones: the caller restores a copy of its own, or the operator brings them back.
    #[error(
        "the files of {owner} are missing from the pool at {}, and nothing was started in their place; \
         `sandbar recover` lists what can be brought back",
        path.display()
    )]
    FilesMissing { owner: FilesOwner, path: PathBuf },
    #[error("the server is stopping")]
    Stopping,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

/// What the missing files belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilesOwner {
    Sandbox(SandboxId),
    /// By its id or name; a snapshot is a template, too.
    Template(String),
    Volume(String),
}

impl fmt::Display for FilesOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => write!(f, "sandbox {id}"),
            Self::Template(name) => write!(f, "template '{name}'"),
            Self::Volume(name) => write!(f, "volume '{name}'"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The key was used before with another body.
    #[error("the idempotency key was used before with a different request")]
    KeyMismatch,
    /// The create call with this key is still in progress.
    #[error("a request with this idempotency key is still in progress")]
    KeyInProgress,
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// The sandboxes of this machine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The database is gone and the files are not. The server leaves them alone: a sweep with an
    /// empty database would remove all of them.
    #[error(
        "{} is missing or empty, but the pool holds the files of {files} sandboxes, templates, volumes and build steps",
        database.display()
    )]
    DatabaseMissing { database: PathBuf, files: usize },
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("cannot read what was uploaded for builds")]
    Uploads(#[source] std::io::Error),
    #[error(transparent)]
    Records(#[from] RecordsError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}
