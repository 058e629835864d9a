//! Refuses changes to a SQLite file whose disk fails.
//!
//! `SQLITE_FULL`, `SQLITE_IOERR`, `SQLITE_CORRUPT` and related codes close the gate: later changes
//! are refused with the cause before they reach SQLite. A task probes the file with a real commit
//! and reopens the gate; a corrupt file stays closed until another process opens it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{error, io, iter};

use durable::{FreeSpace, Unwritable};
use parking_lot::{Mutex, MutexGuard};
use sea_orm::sqlx::error::DatabaseError;
use sea_orm::{ConnAcquireErr, ConnectionTrait, DatabaseConnection, DbErr, RuntimeErr, SqlxError, Statement};
use tracing::{error, info};

/// Between two probes of a closed gate. The first probes come quickly because a full disk is often
/// transient.
const FIRST_PROBE_INTERVAL: Duration = Duration::from_millis(50);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Finds the [`Unwritable`] in the source chain of an error.
pub fn find_unwritable<'a>(error: &'a (dyn error::Error + 'static)) -> Option<&'a Unwritable> {
    iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
}

/// Unwraps the [`Unwritable`] that a database error carries; returns other errors unchanged.
pub fn unwrap_cause(error: Box<dyn error::Error + Send + Sync>) -> Box<dyn error::Error + Send + Sync> {
    match error.downcast_ref::<DbErr>().and_then(find_carried) {
        Some(refused) => Box::new(refused.clone()),
        None => error,
    }
}

/// Sea-orm's errors can carry one of ours only as the source of an I/O error.
fn wrap_unwritable(refused: Unwritable) -> DbErr {
    let carrier = SqlxError::Io(io::Error::new(io::ErrorKind::StorageFull, refused));
    DbErr::Exec(RuntimeErr::SqlxError(Arc::new(carrier)))
}

pub(crate) fn find_carried(error: &DbErr) -> Option<&Unwritable> {
    match sqlx_error(error)? {
        SqlxError::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

fn sqlx_error(error: &DbErr) -> Option<&SqlxError> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => Some(error),
        _ => None,
    }
}

/// How an SQLite error classifies the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Full,
    Io,
    ReadOnly,
    Corrupt,
}

impl Damage {
    /// Classifies by SQLite's primary result code, the low byte of the extended one.
    fn from_sqlite(error: &dyn DatabaseError) -> Option<Self> {
        let code: i32 = error.code()?.parse().ok()?;
        match code & 0xff {
            13 => Some(Self::Full),
            10 | 14 => Some(Self::Io),
            8 => Some(Self::ReadOnly),
            11 | 26 => Some(Self::Corrupt),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct WriteGate {
    file: PathBuf,
    closed: Mutex<Option<Unwritable>>,
}

impl WriteGate {
    pub(crate) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), closed: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, Option<Unwritable>> {
        self.closed.lock()
    }

    pub(crate) fn name(&self) -> String {
        self.file.display().to_string()
    }

    pub(crate) fn fault(&self) -> Option<Unwritable> {
        self.lock_state().clone()
    }

    /// # Errors
    /// A [`DbErr`] that carries [`Unwritable`] while the gate is closed.
    pub(crate) fn admit(&self) -> Result<(), DbErr> {
        self.fault().map_or(Ok(()), |refused| Err(wrap_unwritable(refused)))
    }

    /// Closes the gate if `error` reports the state of the file, and returns the error for the
    /// caller. `writer` probes the file until it recovers.
    pub(crate) fn classify(self: &Arc<Self>, error: DbErr, writer: &DatabaseConnection) -> DbErr {
        let Some(SqlxError::Database(found)) = sqlx_error(&error) else { return error };
        let Some(damage) = Damage::from_sqlite(found.as_ref()) else { return error };
        let mut closed = self.lock_state();
        if let Some(refused) = &*closed {
            return wrap_unwritable(refused.clone());
        }
        let refused = Unwritable::now(&self.file, self.describe(damage, found.as_ref()));
        error!(file = %self.file.display(), error = %found, cause = refused.cause, "the database refuses changes");
        *closed = Some(refused.clone());
        if damage != Damage::Corrupt {
            tokio::spawn(reopen(Arc::downgrade(self), damage, writer.clone()));
        }
        wrap_unwritable(refused)
    }

    fn describe(&self, damage: Damage, found: &dyn DatabaseError) -> String {
        let mount = durable::mount_point(&self.file).display().to_string();
        let space = durable::free_space(&self.file);
        let cause = match (damage, space) {
            (Damage::Corrupt, _) => {
                return format!(
                    "the file is damaged ({}); stop the server, keep a copy of the file, and restore a backup with \
                     `sandbar restore`",
                    found.message()
                );
            }
            (Damage::Full, space)
            | (_, space @ (FreeSpace::NoBytes { .. } | FreeSpace::NoInodes | FreeSpace::ReadOnly)) => {
                durable::describe_full(&mount, space)
            }
            (Damage::Io, FreeSpace::Free) => durable::describe_io_error(&mount, &found.message()),
            (Damage::ReadOnly, FreeSpace::Free) => {
                "the file cannot be written by this user; `ls -l` shows whose it is".to_owned()
            }
        };
        format!("{cause}; changes are accepted again by themselves once it can be written")
    }
}

/// Probes until the file takes a commit or the gate is dropped.
async fn reopen(gate: Weak<WriteGate>, damage: Damage, writer: DatabaseConnection) {
    let mut interval = FIRST_PROBE_INTERVAL;
    loop {
        tokio::time::sleep(interval).await;
        interval = PROBE_INTERVAL.min(interval * 2);
        let Some(gate) = gate.upgrade() else { return };
        // A small commit may fit into the existing log of a full disk.
        let has_space = damage != Damage::Full || matches!(durable::free_space(&gate.file), FreeSpace::Free);
        if !has_space {
            continue;
        }
        match probe(&writer).await {
            Ok(()) => {
                let opened = gate.lock_state().take();
                let since = opened.map(|refused| refused.since);
                info!(file = %gate.file.display(), ?since, "the database accepts changes again");
                return;
            }
            Err(DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed)) => return,
            Err(_) => {}
        }
    }
}

/// Commits without a change: rewrites the user version with its current value.
async fn probe(writer: &DatabaseConnection) -> Result<(), DbErr> {
    let asked = Statement::from_string(writer.get_database_backend(), "PRAGMA user_version");
    let row = writer.query_one_raw(asked).await?;
    let version: i32 = row.map(|row| row.try_get_by_index(0)).transpose()?.unwrap_or_default();
    writer.execute_unprepared(&format!("PRAGMA user_version = {version}")).await?;
    Ok(())
}
