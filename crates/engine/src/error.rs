//! Errors of the namespaces engine, by step, and what they mean to its caller.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{io, iter};

use cgroup::CgroupError;
use durable::Unwritable;
use rustix::io::Errno;

use crate::pool::PoolError;
use crate::port::EngineError;

/// Why the namespaces engine could not do what the caller asked for. Behind the port, the cause of
/// an [`EngineError`].
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
    ReadOnly(Unwritable),
    /// The caller's mistake: the request contradicts itself.
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

    /// The error that the port returns for this one: `what` was attempted.
    pub(crate) fn explain(self, what: &'static str) -> EngineError {
        match self {
            Self::NoSpace(PoolError::NoSpace { path, free, reserve }) => {
                EngineError::NoSpace(durable::explain_reserve(&path, free, reserve))
            }
            Self::NoSpace(other) => EngineError::NoSpace(other.to_string()),
            Self::FilesMissing { name, path } => match name.parse() {
                Ok(files) => EngineError::FilesMissing { files, path },
                Err(_) => EngineError::failed(what, format!("nothing is at {}", path.display())),
            },
            Self::ReadOnly(fault) => EngineError::ReadOnly(fault),
            other => EngineError::failed(what, other),
        }
    }

    /// The refusal of a disk among the causes, explained by the state of the pool's `directories`.
    pub(crate) fn find_disk_refusal(&self, directories: [&Path; 2]) -> Option<EngineError> {
        let mut causes = iter::successors(Some(self as &(dyn Error + 'static)), |cause| (*cause).source());
        let refused = |cause: &(dyn Error + 'static)| {
            let error = cause.downcast_ref::<io::Error>()?;
            let errno = Errno::from_io_error(error)?;
            matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS).then_some((errno, io::Error::from(errno)))
        };
        let (errno, refusal) = causes.find_map(refused)?;
        let exhausted = directories.into_iter().find(|path| durable::is_exhausted(path));
        // Limits of the kernel on namespaces, mounts and cgroups have the same error number. The
        // pool itself fails for its disk.
        let is_of_pool = matches!(self, Self::Pool(_));
        let path = exhausted.or(is_of_pool.then_some(directories[0]))?;
        let cause = durable::explain(path, &refusal);
        Some(match errno {
            Errno::ROFS => EngineError::ReadOnly(Unwritable::now(path, cause)),
            _ => EngineError::NoSpace(cause),
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(error: &dyn Error) -> String {
        let causes = iter::successors(Some(error), |cause| (**cause).source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    /// What callers read of a failure, and whether they can tell it from others.
    #[test]
    fn failures_are_distinguished_and_say_what_to_do() {
        let no_space = || PoolError::NoSpace { path: "/".into(), free: 1 << 30, reserve: 2 << 30 };
        let denied = || io::Error::from_raw_os_error(13);
        let since = "2026-01-02T03:09:06.789Z".parse().expect("a moment");
        let messages = [
            NamespacesError::NoSpace(no_space()),
            NamespacesError::NoSpace(PoolError::InvalidName("x".to_owned())),
            NamespacesError::ReadOnly(Unwritable { path: "/pool".into(), cause: "aborted".to_owned(), since }),
            NamespacesError::FilesMissing { name: "iabc".to_owned(), path: "/pool/x".into() },
            NamespacesError::Unsupported { what: "cgroups".to_owned(), fix: "mount them".to_owned() },
            NamespacesError::Invalid("the template names no root".to_owned()),
            NamespacesError::TooMany(7),
            NamespacesError::Running("iabc".to_owned()),
            NamespacesError::Launch { name: "iabc".to_owned(), step: "mount".to_owned(), source: denied() },
            NamespacesError::Pool(no_space()),
            NamespacesError::Io { what: "make a memory file".to_owned(), source: denied() },
        ]
        .map(|error| {
            let error = error.explain("cannot boot the sandbox");
            let kind = match error {
                EngineError::NoSpace(_) => "NoSpace",
                EngineError::FilesMissing { .. } => "FilesMissing",
                EngineError::ReadOnly(_) => "ReadOnly",
                EngineError::Failed { .. } => "Failed",
            };
            format!("{kind} {}", chain(&error))
        });
        let reserve = "the file system at / has 1024 MiB free, and 2048 MiB are kept free for the sandboxes that exist; \
                       free space there (`df -h /`)";
        let expected = [
            &format!("NoSpace no space left for sandboxes on this machine: {reserve}"),
            "NoSpace no space left for sandboxes on this machine: \"x\" cannot be the name of a volume",
            "ReadOnly /pool accepts no changes since 2026-01-02T03:09:06.789Z: aborted",
            "FilesMissing files iabc are missing from the pool at /pool/x",
            "Failed cannot boot the sandbox: this machine lacks cgroups; mount them",
            "Failed cannot boot the sandbox: invalid request: the template names no root",
            "Failed cannot boot the sandbox: 7 sandboxes run already, and there are no more ids",
            "Failed cannot boot the sandbox: sandbox iabc runs already",
            "Failed cannot boot the sandbox: sandbox iabc could not be started: cannot mount: Permission denied (os error 13)",
            "Failed cannot boot the sandbox: the volume pool failed: the file system of / has 1073741824 bytes left, and \
             2147483648 are kept free for the sandboxes that exist",
            "Failed cannot boot the sandbox: cannot make a memory file: Permission denied (os error 13)",
        ];
        assert_eq!(messages, expected);
    }
}
