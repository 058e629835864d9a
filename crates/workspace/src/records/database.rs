//! Records in a database: one SQLite file for one machine, Postgres for a team. What is acknowledged is on the disk.
//!
//! Every transaction begins with a write. On SQLite that takes the write lock at once, where waiting is possible; a
//! transaction that reads first may find later that it cannot write any more.

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
    move |error| RecordsError { what, source: database::cause(error.into()) }
}

impl DatabaseRecords {
    /// Opens what a URL names, `sqlite:///FILE` or `postgres://…`, and brings it to the newest form. A file that is absent
    /// is made, for its owner's eyes only.
    ///
    /// # Errors
    /// It cannot be reached, or is not what the URL says.
    pub async fn open(url: &Secret) -> Result<Self, RecordsError> {
        let database = database::connect(url.expose()).await.map_err(cannot("open"))?;
        database::migrate::<Migrator>(&database).await.map_err(cannot("migrate"))?;
        Ok(Self { database, set_aside: SetAside::default() })
    }

    /// Ends its connections. Dropping it does so too, without waiting.
    pub async fn close(self) -> Result<(), RecordsError> {
        self.database.close().await.map_err(cannot("close"))
    }
}
