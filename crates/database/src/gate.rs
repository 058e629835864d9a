//! Whether a SQLite file accepts changes.
//!
//! `SQLITE_FULL`, `SQLITE_IOERR`, `SQLITE_CORRUPT` and their relatives close the gate: from then on
//! changes are refused with the cause, before they reach SQLite. A task probes the file by a real
//! commit and opens the gate again; a damaged file stays closed until another process opens it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{error, io, iter};

use jiff::Timestamp;
use sea_orm::sqlx::error::DatabaseError;
use sea_orm::{ConnAcquireErr, ConnectionTrait, DatabaseConnection, DbErr, RuntimeErr, SqlxError, Statement};
use tracing::{error, info};

use crate::filesystem::{self, Room};

/// Between two probes of a file that refuses changes: the first ones come quickly, because a full
/// disk is often a passing one.
const FIRST_PROBE_INTERVAL: Duration = Duration::from_millis(50);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// A file or file system that refuses changes. What was written before can still be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} accepts no changes since {since}: {cause}", .path.display())]
pub struct Unwritable {
    /// What refuses.
    pub path: PathBuf,
    /// What happened and what to do, for the operator.
    pub cause: String,
    pub since: Timestamp,
}

/// The [`Unwritable`] among the causes of an error, if a file that refuses changes was the reason.
pub fn unwritable<'a>(error: &'a (dyn error::Error + 'static)) -> Option<&'a Unwritable> {
    iter::successors(Some(error), |error| (*error).source()).find_map(|error| error.downcast_ref())
}

/// The cause that a caller should see: the [`Unwritable`] that a database's error carries, else the
/// error itself.
pub fn cause(error: Box<dyn error::Error + Send + Sync>) -> Box<dyn error::Error + Send + Sync> {
    match error.downcast_ref::<DbErr>().and_then(carried) {
        Some(refused) => Box::new(refused.clone()),
        None => error,
    }
}

/// Sea-orm's errors have no place for one of ours, except as the cause of an I/O error.
fn carry(refused: Unwritable) -> DbErr {
    let carrier = SqlxError::Io(io::Error::new(io::ErrorKind::StorageFull, refused));
    DbErr::Exec(RuntimeErr::SqlxError(Arc::new(carrier)))
}

pub(crate) fn carried(error: &DbErr) -> Option<&Unwritable> {
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

/// What an error says about the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Full,
    Io,
    ReadOnly,
    Corrupt,
}

impl Damage {
    /// By SQLite's primary result code, which is the low byte of the extended one.
    fn of(error: &dyn DatabaseError) -> Option<Self> {
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
pub(crate) struct Gate {
    file: PathBuf,
    closed: Mutex<Option<Unwritable>>,
}

impl Gate {
    pub(crate) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), closed: Mutex::default() }
    }

    fn closed(&self) -> MutexGuard<'_, Option<Unwritable>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn name(&self) -> String {
        self.file.display().to_string()
    }

    pub(crate) fn fault(&self) -> Option<Unwritable> {
        self.closed().clone()
    }

    /// # Errors
    /// The file refuses changes.
    pub(crate) fn admit(&self) -> Result<(), DbErr> {
        self.fault().map_or(Ok(()), |refused| Err(carry(refused)))
    }

    /// Closes the gate if `error` tells of the file's state, and then returns what the caller
    /// should be told. `writer` is used to probe the file.
    pub(crate) fn judge(self: &Arc<Self>, error: DbErr, writer: &DatabaseConnection) -> DbErr {
        let Some(SqlxError::Database(found)) = sqlx_error(&error) else { return error };
        let Some(damage) = Damage::of(found.as_ref()) else { return error };
        let mut closed = self.closed();
        if let Some(refused) = &*closed {
            return carry(refused.clone());
        }
        let refused = Unwritable {
            path: self.file.clone(),
            cause: self.describe(damage, found.as_ref()),
            since: Timestamp::now(),
        };
        error!(file = %self.file.display(), error = %found, cause = refused.cause, "a database refuses changes");
        *closed = Some(refused.clone());
        if damage != Damage::Corrupt {
            tokio::spawn(reopen(Arc::downgrade(self), damage, writer.clone()));
        }
        carry(refused)
    }

    fn describe(&self, damage: Damage, found: &dyn DatabaseError) -> String {
        let mount = filesystem::mount_point(&self.file).display().to_string();
        let room = filesystem::room(&self.file);
        let cause = match (damage, room) {
            (Damage::Corrupt, _) => {
                return format!(
                    "the file is damaged ({}); stop the server, keep a copy of the file, and restore a backup with \
                     `sandbar restore`",
                    found.message()
                );
            }
            (Damage::Full, room) | (_, room @ (Room::NoBytes { .. } | Room::NoInodes | Room::ReadOnly)) => {
                filesystem::full(&mount, room)
            }
            (Damage::Io, Room::Free) => filesystem::broken(&mount, &found.message()),
            (Damage::ReadOnly, Room::Free) => {
                "the file cannot be written by this user; `ls -l` shows whose it is".to_owned()
            }
        };
        format!("{cause}; changes are accepted again by themselves once it can be written")
    }
}

/// Probes until the file takes a commit again, or nothing uses the gate any more.
async fn reopen(gate: Weak<Gate>, damage: Damage, writer: DatabaseConnection) {
    let mut interval = FIRST_PROBE_INTERVAL;
    loop {
        tokio::time::sleep(interval).await;
        interval = PROBE_INTERVAL.min(interval * 2);
        let Some(gate) = gate.upgrade() else { return };
        // A commit may fit into what the log has already, although nothing else fits.
        let has_room = damage != Damage::Full || matches!(filesystem::room(&gate.file), Room::Free);
        if !has_room {
            continue;
        }
        match probe(&writer).await {
            Ok(()) => {
                let opened = gate.closed().take();
                let since = opened.map(|refused| refused.since);
                info!(file = %gate.file.display(), ?since, "a database accepts changes again");
                return;
            }
            Err(DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed)) => return,
            Err(_) => {}
        }
    }
}

/// Commits a change that changes nothing: the version is written as it was.
async fn probe(writer: &DatabaseConnection) -> Result<(), DbErr> {
    let asked = Statement::from_string(writer.get_database_backend(), "PRAGMA user_version");
    let row = writer.query_one_raw(asked).await?;
    let version: i32 = row.map(|row| row.try_get_by_index(0)).transpose()?.unwrap_or_default();
    writer.execute_unprepared(&format!("PRAGMA user_version = {version}")).await?;
    Ok(())
}
