//! The studio's persistent state: users, credits, projects, jobs, events, screenshots. In SQLite or
//! Postgres, in the database of workspaces and runs, which also has the usage.
//!
//! Every transaction starts with a write. On SQLite that takes the write lock at once, where
//! waiting is possible; on Postgres the row lock serialises transactions on the same job or user.

mod batch;
mod entity;
mod events;
mod jobs;
mod migration;
mod model;
mod projects;
mod screenshots;
mod sessions;
mod users;

use std::error::Error;

use database::{Database, SetAside, Unwritable};
use sdk::Secret;
use sea_orm::DbErr;
use workspace::clock::Clock;

use self::batch::BatchLoader;
use self::entity::job;
pub(crate) use self::jobs::MAX_RETRY_DELAY;
use self::migration::Migrator;
pub use self::model::{Change, JobRecord, JobSpec, Precondition};
pub use self::projects::ProjectRecord;
pub use self::screenshots::NewScreenshot;
pub use self::sessions::SessionRecord;
pub use self::users::{AddUserError, CreditChange};

/// Records in SQLite or Postgres. Cheap to clone.
#[derive(Clone)]
pub struct Records {
    database: Database,
    set_aside: SetAside,
    /// Pages that show a build poll its job.
    jobs: BatchLoader<String, job::Model, DbErr>,
    clock: Clock,
}

/// An operation on the records failed. A write may or may not have been executed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the studio's records")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

type Damage = Box<dyn Error + Send + Sync>;

fn cannot<E: Into<Damage>>(what: &'static str) -> impl Fn(E) -> RecordsError {
    move |error| RecordsError { what, source: database::unwrap_cause(error.into()) }
}

impl Records {
    /// Opens the database of a URL, the same as for workspaces, and migrates it.
    ///
    /// # Errors
    /// [`RecordsError`] when the database cannot be reached or migrated.
    pub async fn open(url: &Secret) -> Result<Self, RecordsError> {
        let database = database::connect(url.expose()).await.map_err(cannot("open"))?;
        database::migrate::<Migrator>(&database).await.map_err(cannot("migrate"))?;
        let jobs = jobs::job_loader(&database);
        Ok(Self { jobs, database, set_aside: SetAside::default(), clock: Clock::System })
    }

    /// The same records with another clock for claims and their leases.
    #[must_use]
    pub(crate) fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Why writes are refused, while they are. Does no I/O.
    pub fn fault(&self) -> Option<Unwritable> {
        self.database.fault()
    }

    /// Closes the connections. Dropping does the same without waiting.
    ///
    /// # Errors
    /// [`RecordsError`] when a connection does not close cleanly.
    pub async fn close(self) -> Result<(), RecordsError> {
        self.database.close().await.map_err(cannot("close"))
    }
}
