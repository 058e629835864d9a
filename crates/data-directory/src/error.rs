//! Why a data directory cannot be used.

use std::error::Error;
use std::io;
use std::path::Path;

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirectoryError {
    /// It is not a directory of this user and of Sandbar; the message says what to do.
    #[error("{0}")]
    Refused(String),
    /// A file could not be written; the message says why, on which file system, and what to do.
    #[error("{0}")]
    Write(String),
    /// A step failed.
    #[error("{what}")]
    Failed { what: String, source: Box<dyn Error + Send + Sync> },
}

/// For `map_err`: says which step failed.
pub(crate) fn failed<E: Error + Send + Sync + 'static>(
    what: impl FnOnce() -> String,
) -> impl FnOnce(E) -> DataDirectoryError {
    |source| DataDirectoryError::Failed { what: what(), source: Box::new(source) }
}

/// Explains why `path` could not be written, on which file system, and what to do.
pub fn write_error(path: &Path) -> impl FnOnce(io::Error) -> DataDirectoryError {
    let path = path.to_owned();
    move |error| DataDirectoryError::Write(durable::explain(&path, &error))
}
