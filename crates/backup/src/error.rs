//! Why a backup, a restore or a check of stored data did not succeed.

use std::error::Error;

/// Why a backup, a restore or a check of stored data did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// What was asked does not fit what is there; the message says what to do.
    #[error("{0}")]
    Refused(String),
    /// The backup is not what was stored; another one may be.
    #[error("{0}")]
    Damaged(String),
    /// A step failed.
    #[error("{what}")]
    Failed { what: String, source: Box<dyn Error + Send + Sync> },
    /// A file of the data directory or of the backup cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The object store of the backup failed.
    #[error(transparent)]
    Store(#[from] checkpoint::ObjectStoreError),
    /// A database cannot be copied or verified.
    #[error(transparent)]
    Database(#[from] database::CopyError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDirectory(#[from] data_directory::DataDirectoryError),
}

pub(crate) type Result<T> = std::result::Result<T, BackupError>;

/// Says which step failed.
pub(crate) trait During<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Error + Send + Sync + 'static> During<T> for std::result::Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| BackupError::Failed { what: what(), source: Box::new(source) })
    }
}

pub(crate) fn refused<T>(message: impl Into<String>) -> Result<T> {
    Err(BackupError::Refused(message.into()))
}

pub(crate) fn damaged<T>(message: impl Into<String>) -> Result<T> {
    Err(BackupError::Damaged(message.into()))
}
