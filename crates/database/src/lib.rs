//! Database access for all crates: one SQLite file per machine, or Postgres for a team.
//! Acknowledged changes are on the disk. A file is readable by its owner only because it holds
//! tokens and values of environment variables.

mod copy;
mod handle;
mod set_aside;
mod write_gate;

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
pub use self::handle::{Database, Transaction};
pub use self::set_aside::{SetAside, SetAsideRow};
use self::write_gate::WriteGate;
pub use self::write_gate::{find_unwritable, unwrap_cause};
pub use durable::Unwritable;

/// Completes the module of a table for SeaORM: without relations that queries follow, and without
/// hooks.
#[macro_export]
macro_rules! plain_entity {
    () => {
        #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
        pub enum Relation {}

        impl ActiveModelBehavior for ActiveModel {}
    };
}

/// How long a statement waits for another process's write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a caller waits for a connection from the pool, so that an unreachable database is
/// reported within this time.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of one process to Postgres.
const CONNECTIONS: u32 = 8;
/// Reader connections of one process to a SQLite file.
const READERS: u32 = 2;
/// Processes that start at the same time race to create the tables; the losers retry.
const MIGRATION_ATTEMPTS: u32 = 8;
const MIGRATION_BACKOFF: Duration = Duration::from_millis(50);

const PRIVATE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;

/// A database that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{}", durable::explain(.path, .source))]
    File { path: PathBuf, source: io::Error },
    #[error("the database {} cannot be opened", .path.display())]
    Sqlite { path: PathBuf, source: DbErr },
    #[error(transparent)]
    Database(#[from] DbErr),
}

/// A migration that failed.
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

/// Opens the database of a URL, `sqlite:///FILE` or `postgres://…`.
///
/// # Errors
/// [`OpenError::File`] when the file cannot be created, [`OpenError::Sqlite`] when SQLite cannot
/// open it, [`OpenError::Database`] when Postgres cannot be reached.
pub async fn connect(url: &str) -> Result<Database, OpenError> {
    match url.strip_prefix("sqlite://") {
        Some(path) => open_file(Path::new(path)).await,
        None => {
            let pool = sea_orm::Database::connect(postgres(url)).await?;
            Ok(Database { writer: pool.clone(), readers: pool, gate: None })
        }
    }
}

/// Opens the SQLite database at `file`, creating it if absent.
///
/// Queries outside of transactions use separate reader connections: the single writer waits for the
/// disk with every commit, and is closed when the disk is full. Readers see every change committed
/// before their query.
///
/// # Errors
/// [`OpenError::File`] when the file cannot be created, [`OpenError::Sqlite`] when SQLite cannot
/// open it.
pub async fn open_file(file: &Path) -> Result<Database, OpenError> {
    make_private(file).map_err(|source| OpenError::File { path: file.to_owned(), source })?;
    let open = async |access| -> Result<DatabaseConnection, OpenError> {
        let opened = sea_orm::Database::connect(sqlite(file, access)).await;
        opened.map_err(|source| OpenError::Sqlite { path: file.to_owned(), source })
    };
    let (writer, readers) = (open(Access::Write).await?, open(Access::Read).await?);
    Ok(Database { writer, readers, gate: Some(Arc::new(WriteGate::new(file))) })
}

/// Runs the pending migrations, retrying when another process races. Crates that share a database
/// each have their own migration table.
///
/// # Errors
/// [`MigrateError::Newer`] when a newer version of the program has migrated this database,
/// [`MigrateError::Failed`] when the last retry fails.
pub async fn migrate<M: MigratorTrait>(database: &Database) -> Result<(), MigrateError> {
    let mut attempts = 1;
    loop {
        let Err(error) = M::up(database, None).await else { return Ok(()) };
        let name = || database.gate.as_ref().map_or_else(|| "the database".to_owned(), |gate| gate.name());
        if let Some(migration) = unknown_migration(&error) {
            return Err(MigrateError::Newer { database: name(), migration });
        }
        if attempts == MIGRATION_ATTEMPTS {
            let error = match &database.gate {
                Some(gate) => gate.classify(error, &database.writer),
                None => error,
            };
            return Err(MigrateError::Failed { database: name(), source: unwrap_cause(error.into()) });
        }
        tokio::time::sleep(MIGRATION_BACKOFF * attempts).await;
        attempts += 1;
    }
}

/// The name of an applied migration that this program does not have.
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
        // One writer, so that statements wait for no lock of this process.
        Access::Write => (1, "OFF"),
        Access::Read => (READERS, "ON"),
    };
    // The path is an option, not part of the URL, where some characters have a meaning.
    let mut options = ConnectOptions::new("sqlite::memory:");
    options
        .min_connections(1)
        .max_connections(connections)
        .acquire_timeout(ACQUIRE_TIMEOUT + BUSY_TIMEOUT)
        .sqlx_logging(false)
        // A file does not close connections as a server does, and each test is a round trip to the
        // connection's thread.
        .test_before_acquire(false)
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
                // Overwrites deleted content, which would stay in free pages.
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

/// Creates the file with private permissions, and restricts its `-wal` and `-shm` files, which take
/// theirs from it and may exist from an earlier run.
///
/// `mknodat` creates the file without opening it. A process that closes a file loses all POSIX
/// locks it holds on it, and another part of this process may have it open: without that lock, the
/// next process that closes the file would delete the write-ahead log while it is in use.
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
