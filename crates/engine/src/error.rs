//! Errors of the engine, by what the caller can do about them.

use std::io;
use std::path::PathBuf;

use crate::cgroup::CgroupError;
use crate::pool::{PoolError, PoolFault};

/// Why the engine could not do what the caller asked for.
#[derive(Debug, thiserror::Error)]
pub enum NamespacesError {
    /// The machine cannot isolate sandboxes as it is; `fix` says what would change that.
    #[error("this machine lacks {what}; {fix}")]
    Unsupported { what: String, fix: String },
    /// Removing sandboxes or freeing space on the host helps.
    #[error("not enough disk space for another sandbox")]
    NoSpace(#[source] PoolError),
    /// The kernel has made the pool read-only; opening the engine again helps.
    #[error(transparent)]
    ReadOnly(PoolFault),
    /// The caller's mistake: the name is not a sandbox name, or the request contradicts itself.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Files to boot, mount or copy are not in the pool. Nothing was created in their place.
    #[error("files {name} are missing from the pool at {}", path.display())]
    FilesMissing { name: String, path: PathBuf },
    /// Every id range is in use. The caller can retry when a sandbox has ended.
    #[error("{0} sandboxes run already, and there are no more ids")]
    TooMany(usize),
    /// A sandbox of that name runs.
    #[error("sandbox {0} runs already")]
    Running(String),
    /// The launcher failed at `step`; nothing of the sandbox is left but its files.
    #[error("sandbox {name} could not be started: cannot {step}")]
    Launch { name: String, step: String, source: io::Error },
    #[error("the volume pool failed")]
    Pool(#[source] PoolError),
    #[error("the cgroup of a sandbox failed")]
    Cgroup(#[from] CgroupError),
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
}

impl NamespacesError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

impl From<PoolError> for NamespacesError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::NoSpace { .. } => Self::NoSpace(error),
            PoolError::Missing { name, path } => Self::FilesMissing { name, path },
            PoolError::ReadOnly(fault) => Self::ReadOnly(fault),
            other => Self::Pool(other),
        }
    }
}
