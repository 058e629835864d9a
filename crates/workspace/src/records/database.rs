//! Records in a database: one SQLite file for one machine, Postgres for a team. What is acknowledged is on the disk.
//!
//! Every transaction begins with a write. On SQLite that takes the write lock at once, where waiting is possible; a
//! transaction that reads first may find later that it cannot write any more.

use std::error::Error;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sdk::Secret;
use sea_orm::sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};
use sea_orm_migration::MigratorTrait;

use super::migration::Migrator;
use super::port::RecordsError;

/// Another process may be writing; none writes for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// For a connection, waiting for one that others use included: nobody is out of reach for longer unnoticed.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Of one process, to Postgres.
const CONNECTIONS: u32 = 8;
/// Processes that start at once may get in each other's way when the tables are made.
const MIGRATION_TRIES: u32 = 8;
const MIGRATION_WAIT: Duration = Duration::from_millis(50);

const PRIVATE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;

/// Records in SQLite or Postgres.
#[derive(Debug, Clone)]
pub struct DatabaseRecords {
    pub(super) database: DatabaseConnection,
}

pub(super) fn cannot<E: Into<Box<dyn Error + Send + Sync>>>(what: &'static str) -> impl Fn(E) -> RecordsError {
    move |error| RecordsError { what, source: error.into() }
}

impl DatabaseRecords {
    /// Opens what a URL names, `sqlite:///FILE` or `postgres://…`, and brings it to the newest form. A file that is absent
    /// is made, for its owner's eyes only.
    ///
    /// # Errors
    /// It cannot be reached, or is not what the URL says.
    pub async fn open(url: &Secret) -> Result<Self, RecordsError> {
        let database = connect(url).await?;
        migrate::<Migrator>(&database).await?;
        Ok(Self { database })
    }

    /// Ends its connections. Dropping it does so too, without waiting.
    pub async fn close(self) -> Result<(), RecordsError> {
        self.database.close().await.map_err(cannot("close"))
    }
}

/// Opens the database that a URL names as [`DatabaseRecords::open`] does, for other parts that keep tables of their own
/// beside these.
///
/// # Errors
/// It cannot be reached, or is not what the URL says.
pub async fn connect(url: &Secret) -> Result<DatabaseConnection, RecordsError> {
    let options = match url.expose().strip_prefix("sqlite://") {
        Some(path) => {
            let path = PathBuf::from(path);
            make_private(&path).map_err(cannot("make a private file for"))?;
            sqlite(path)
        }
        None => postgres(url),
    };
    Database::connect(options).await.map_err(cannot("open"))
}

fn sqlite(path: PathBuf) -> ConnectOptions {
    // The path is given as an option, not in the URL, where some of its characters would mean something.
    let mut options = ConnectOptions::new("sqlite::memory:");
    options
        .min_connections(1)
        // One writer and no lock to wait for, except of other processes.
        .max_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT + BUSY_TIMEOUT)
        .sqlx_logging(false)
        .map_sqlx_sqlite_opts(move |options| {
            options
                .filename(&path)
                .in_memory(false)
                .shared_cache(false)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(BUSY_TIMEOUT)
                // The values of variables do not stay in pages that are free.
                .pragma("secure_delete", "ON")
        });
    options
}

fn postgres(url: &Secret) -> ConnectOptions {
    let mut options = ConnectOptions::new(url.expose());
    options.max_connections(CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT).sqlx_logging(false);
    options
}

/// Brings tables to their newest form. Whoever shares a database has a migration table of their own.
///
/// # Errors
/// The database refuses, also when asked again.
pub async fn migrate<M: MigratorTrait>(database: &DatabaseConnection) -> Result<(), RecordsError> {
    let mut tries = 1;
    loop {
        match M::up(database, None).await {
            Ok(()) => return Ok(()),
            Err(error) if tries == MIGRATION_TRIES => return Err(cannot("migrate")(error)),
            Err(_) => {}
        }
        tokio::time::sleep(MIGRATION_WAIT * tries).await;
        tries += 1;
    }
}

/// Makes sure that only its owner reads the values of variables. The files that SQLite keeps beside the database take
/// their permissions from it, and those of an earlier run may still be there.
fn make_private(file: &Path) -> io::Result<()> {
    if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(directory)?;
    }
    File::options().append(true).create(true).mode(PRIVATE).open(file)?;
    for suffix in ["", "-wal", "-shm"] {
        let mut beside = file.as_os_str().to_owned();
        beside.push(suffix);
        match fs::set_permissions(&beside, Permissions::from_mode(PRIVATE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
