//! Databases as all parts keep them: one SQLite file for one machine, Postgres for a team. What is acknowledged is on the disk, and a
//! file is for its owner's eyes only: there are tokens and the values of variables in it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use sea_orm::sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr};
use sea_orm_migration::MigratorTrait;

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
    #[error("a file for its owner alone cannot be made")]
    File(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] DbErr),
}

/// Opens what a URL names, `sqlite:///FILE` or `postgres://…`.
///
/// # Errors
/// It cannot be reached, or is not what the URL says.
pub async fn connect(url: &str) -> Result<DatabaseConnection, OpenError> {
    match url.strip_prefix("sqlite://") {
        Some(path) => open_file(Path::new(path)).await,
        None => Ok(Database::connect(postgres(url)).await?),
    }
}

/// Opens the SQLite database at `file`, and makes it if it is absent.
///
/// # Errors
/// It cannot be made or read.
pub async fn open_file(file: &Path) -> Result<DatabaseConnection, OpenError> {
    make_private(file)?;
    Ok(Database::connect(sqlite(file, Access::Write)).await?)
}

/// Connections that only read what `database` holds, which was opened by the same URL. The one connection that writes to a file waits
/// for the disk with every commit; these wait for nobody, and see what was committed before they ask.
///
/// # Errors
/// The file cannot be read.
pub async fn readers(url: &str, database: &DatabaseConnection) -> Result<DatabaseConnection, OpenError> {
    match url.strip_prefix("sqlite://") {
        Some(path) => Ok(Database::connect(sqlite(Path::new(path), Access::Read)).await?),
        None => Ok(database.clone()),
    }
}

/// Brings tables to their newest form. Whoever shares a database has a migration table of their own.
///
/// # Errors
/// The database refuses, also when asked again.
pub async fn migrate<M: MigratorTrait>(database: &DatabaseConnection) -> Result<(), DbErr> {
    let mut tries = 1;
    loop {
        match M::up(database, None).await {
            Err(_) if tries < MIGRATION_TRIES => {}
            done => return done,
        }
        tokio::time::sleep(MIGRATION_WAIT * tries).await;
        tries += 1;
    }
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
