//! What outlives the studio's process: users, credits, projects, jobs, what happened in them and how it looked. In SQLite
//! or Postgres, beside the records of workspaces and runs. What was used stands in the workspaces' book.
//!
//! Every transaction begins with a write. On SQLite that takes the write lock at once, where waiting is possible; on
//! Postgres it is the row that keeps two who want the same thing apart.

mod entity;
mod events;
mod jobs;
mod migration;
mod model;
mod pictures;
mod projects;
mod sessions;
mod together;
mod users;

use std::error::Error;

use database::{Database, SetAside, Unwritable};
use sdk::Secret;
use sea_orm::DbErr;

use self::entity::job;
pub(crate) use self::jobs::LONGEST_REST;
use self::migration::Migrator;
pub use self::model::{Change, Held, JobRecord, NewJob, Spec};
pub use self::pictures::NewPicture;
pub use self::projects::ProjectRecord;
pub use self::sessions::SessionRecord;
use self::together::Together;
pub use self::users::{Credited, NameTaken};

/// Records in SQLite or Postgres. Cheap to clone.
#[derive(Clone)]
pub struct Records {
    database: Database,
    set_aside: SetAside,
    /// Every page that shows a build asks for it again and again.
    jobs: Together<String, job::Model, DbErr>,
}

/// The records failed. Nothing is known to be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the studio's records")]
pub struct RecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

type Damage = Box<dyn Error + Send + Sync>;

fn cannot<E: Into<Damage>>(what: &'static str) -> impl Fn(E) -> RecordsError {
    move |error| RecordsError { what, source: database::cause(error.into()) }
}

impl Records {
    /// Opens what a URL names, the same as for workspaces, and brings it to the newest form.
    ///
    /// # Errors
    /// It cannot be reached, or is not what the URL says.
    pub async fn open(url: &Secret) -> Result<Self, RecordsError> {
        let database = database::connect(url.expose()).await.map_err(cannot("open"))?;
        database::migrate::<Migrator>(&database).await.map_err(cannot("migrate"))?;
        Ok(Self { jobs: jobs::lookups(&database), database, set_aside: SetAside::default() })
    }

    /// Why changes are refused, while they are. Does no I/O.
    pub fn fault(&self) -> Option<Unwritable> {
        self.database.fault()
    }

    /// Ends its connections. Dropping it does so too, without waiting.
    ///
    /// # Errors
    /// A connection did not end as it should.
    pub async fn close(self) -> Result<(), RecordsError> {
        self.database.close().await.map_err(cannot("close"))
    }
}
