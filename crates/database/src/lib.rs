//! Databases as all parts keep them: one SQLite file for one machine, Postgres for a team. What is acknowledged is on the disk, and a
//! file is for its owner's eyes only: there are tokens and the values of variables in it.

mod copy;
mod filesystem;
mod gate;
mod handle;
mod set_aside;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use sea_orm::sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use sea_orm::{ConnectOptions, DatabaseConnection, DbErr};
use sea_orm_migration::MigratorTrait;

pub use self::copy::{CopyError, backup, verify};
pub use self::filesystem::explain;
use self::gate::Gate;
pub use self::gate::{Unwritable, cause, unwritable};
pub use self::handle::{Database, Transaction};
pub use self::set_aside::{SetAside, SetAsideRow};

/// Another process may be writing; none writes for long.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// For a connection, waiting for one that others use included: nobody is out of reach for longer unnoticed.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Of one process, to Postgres.
const CONNECTIONS: u32 = 8;
/// Of one process, that read a file.
const READERS: u32 = 2;
/// Processes that start at once may get in each other's way when the tables are made.
const MIGRATION_TRIES: u32 = 8;
const MIGRATION_WAIT: Duration = Duration::from_millis(50);

const PRIVATE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;

/// A database that was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}", explain(.path, .source))]
    File { path: PathBuf, source: io::Error },
    #[error("the database {} cannot be opened", .path.display())]
    Sqlite { path: PathBuf, source: DbErr },
    #[error(transparent)]
    Database(#[from] DbErr),
}

/// Tables that were not brought to the newest form.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Run the newer program again, or restore a backup from before the upgrade.
    #[error(
        "{database} was written by a newer version of this program (it has the migration {migration}, which version {} does not \
         know); run the newer version again, or restore a backup that was made before the upgrade (`sandbar restore`)",
        env!("CARGO_PKG_VERSION")
    )]
    Newer { database: String, migration: String },
    #[error("the tables of {database} cannot be brought to the newest form")]
    Failed { database: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// Opens what a URL names, `sqlite:///FILE` or `postgres://…`.
///
/// # Errors
/// It cannot be reached, or is not what the URL says.
pub async fn connect(url: &str) -> Result<Database, OpenError> {
    match url.strip_prefix("sqlite://") {
        Some(path) => open_file(Path::new(path)).await,
        None => {
            let pool = sea_orm::Database::connect(postgres(url)).await?;
            Ok(Database { writer: pool.clone(), readers: pool, gate: None })
        }
    }
}

/// Opens the SQLite database at `file`, and makes it if it is absent.
///
/// Queries outside of transactions go through connections of their own: the one connection that
/// writes waits for the disk with every commit, and is closed when the disk is full. They see what
/// was committed before they ask.
///
/// # Errors
/// It cannot be made or read.
pub async fn open_file(file: &Path) -> Result<Database, OpenError> {
    make_private(file).map_err(|source| OpenError::File { path: file.to_owned(), source })?;
    let open = async |access| -> Result<DatabaseConnection, OpenError> {
        let opened = sea_orm::Database::connect(sqlite(file, access)).await;
        opened.map_err(|source| OpenError::Sqlite { path: file.to_owned(), source })
    };
    let (writer, readers) = (open(Access::Write).await?, open(Access::Read).await?);
    Ok(Database { writer, readers, gate: Some(Arc::new(Gate::new(file))) })
}

/// Brings tables to their newest form. Whoever shares a database has a migration table of their own.
///
/// # Errors
/// [`MigrateError::Newer`] when a later version of the program has been here, or the database
/// refuses, also when asked again.
pub async fn migrate<M: MigratorTrait>(database: &Database) -> Result<(), MigrateError> {
    let mut tries = 1;
    loop {
        let Err(error) = M::up(database, None).await else { return Ok(()) };
        let name = || database.gate.as_ref().map_or_else(|| "the database".to_owned(), |gate| gate.name());
        if let Some(migration) = unknown_migration(&error) {
            return Err(MigrateError::Newer { database: name(), migration });
        }
        if tries == MIGRATION_TRIES {
            let error = match &database.gate {
                Some(gate) => gate.judge(error, &database.writer),
                None => error,
            };
            return Err(MigrateError::Failed { database: name(), source: cause(error.into()) });
        }
        tokio::time::sleep(MIGRATION_WAIT * tries).await;
        tries += 1;
    }
}

/// The migration that was applied here and that this program does not have.
fn unknown_migration(error: &DbErr) -> Option<String> {
    let DbErr::Custom(message) = error else { return None };
    let (_, rest) = message.split_once("Migration file of version '")?;
    let (migration, rest) = rest.split_once('\'')?;
    rest.contains("is missing").then(|| migration.to_owned())
}

#[derive(Clone, Copy)]
enum Access {
    Write,
    Read,
}

fn sqlite(file: &Path, access: Access) -> ConnectOptions {
    let file = file.to_owned();
    let (connections, query_only) = match access {
        // One writer and no lock to wait for, except of other processes.
        Access::Write => (1, "OFF"),
        Access::Read => (READERS, "ON"),
    };
    // The path is given as an option, not in the URL, where some of its characters would mean something.
    let mut options = ConnectOptions::new("sqlite::memory:");
    options
        .min_connections(1)
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT + BUSY_TIMEOUT)
        .sqlx_logging(false)
        .map_sqlx_sqlite_pool_opts(move |options| match access {
            Access::Read => options,
            Access::Write => options
                .before_acquire(|connection, _| handle::is_reusable(connection))
                .after_release(|connection, _| handle::is_reusable(connection)),
        })
        .map_sqlx_sqlite_opts(move |options| {
            options
                .filename(&file)
                .in_memory(false)
                .shared_cache(false)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(BUSY_TIMEOUT)
                // What was deleted does not stay in pages that are free.
                .pragma("secure_delete", "ON")
                .pragma("query_only", query_only)
        });
    options
}

fn postgres(url: &str) -> ConnectOptions {
    let mut options = ConnectOptions::new(url);
    options.max_connections(CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT).sqlx_logging(false);
    options
}

/// The files that SQLite keeps beside the database take their permissions from it, and those of an earlier run may still be there.
///
/// The file is made without being opened. A process that closes a file loses all locks it has there, and another part of this one may
/// have it open: without its lock, the next process that closes the file would take the write-ahead log away from under it.
fn make_private(file: &Path) -> io::Result<()> {
    if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(directory)?;
    }
    match mknodat(CWD, file, FileType::RegularFile, Mode::from_raw_mode(PRIVATE), 0) {
        Err(error) if error != Errno::EXIST => return Err(error.into()),
        _ => {}
    }
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
