//! Records in a database: one SQLite file for one machine, Postgres for a team. A write is durable
//! when it is acknowledged.
//!
//! Every transaction starts with a write. On SQLite that takes the write lock immediately, where
//! the busy timeout applies; a transaction that reads first may fail later to upgrade its lock.

use std::error::Error;

use database::{Database, SetAside};
use sdk::Secret;

use super::migration::Migrator;
use super::port::RecordsError;

/// Records in SQLite or Postgres.
#[derive(Debug, Clone)]
pub struct DatabaseRecords {
    pub(super) database: Database,
    pub(super) set_aside: SetAside,
}

pub(super) fn cannot<E: Into<Box<dyn Error + Send + Sync>>>(what: &'static str) -> impl Fn(E) -> RecordsError {
    move |error| RecordsError { what, source: database::unwrap_cause(error.into()) }
}

impl DatabaseRecords {
    /// Opens the database of a URL, `sqlite:///FILE` or `postgres://…`, and migrates it. A missing
    /// file is created, readable by its owner only.
    ///
    /// # Errors
    /// [`RecordsError`] when it cannot be reached, is not a database of that kind, or cannot be
    /// migrated.
    pub async fn open(url: &Secret) -> Result<Self, RecordsError> {
        let database = database::connect(url.expose()).await.map_err(cannot("open"))?;
        database::migrate::<Migrator>(&database).await.map_err(cannot("migrate"))?;
        Ok(Self { database, set_aside: SetAside::default() })
    }

    /// Closes its connections. Dropping it does so too, without waiting.
    pub async fn close(self) -> Result<(), RecordsError> {
        self.database.close().await.map_err(cannot("close"))
    }
}
