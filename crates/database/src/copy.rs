//! Online backups of SQLite databases, and integrity checks.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sea_orm::sqlx::sqlite::SqliteConnectOptions;
use sea_orm::sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Error as SqlxError, Row as _, SqliteConnection,
};

use crate::{BUSY_TIMEOUT, PRIVATE};

/// A failed backup, or a damaged database.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the database {} cannot be read", .path.display())]
    Read { path: PathBuf, source: SqlxError },
    #[error("the database {} is damaged: {flaw}", .path.display())]
    Damaged { path: PathBuf, flaw: String },
    #[error("{}", durable::explain(.path, .source))]
    Write { path: PathBuf, source: io::Error },
}

async fn open(file: &Path) -> Result<SqliteConnection, CopyError> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(false);
    let options = options.busy_timeout(BUSY_TIMEOUT).disable_statement_logging();
    options.connect().await.map_err(|source| CopyError::Read { path: file.to_owned(), source })
}

/// Copies the SQLite database `file` to `destination` while other connections read and write it.
/// The copy is one consistent state, checked, synced, and renamed into place only when complete.
///
/// # Errors
/// Any [`CopyError`]; nothing is left at `destination`.
pub async fn backup(file: &Path, destination: &Path) -> Result<(), CopyError> {
    let mut draft = destination.as_os_str().to_owned();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    let written = |source| CopyError::Write { path: draft.clone(), source };
    // A killed process may have left it; SQLite requires a free path.
    let _ = fs::remove_file(&draft);
    let copied = async {
        let mut connection = open(file).await?;
        let place = draft.to_string_lossy().replace('\'', "''");
        let copied = sqlx::query(AssertSqlSafe(format!("VACUUM INTO '{place}'"))).execute(&mut connection).await;
        copied.map_err(|source| CopyError::Read { path: file.to_owned(), source })?;
        let _ = connection.close().await;
        fs::set_permissions(&draft, Permissions::from_mode(PRIVATE)).map_err(written)?;
        verify(&draft).await?;
        File::open(&draft).and_then(|draft| draft.sync_all()).map_err(written)?;
        fs::rename(&draft, destination).map_err(written)?;
        let directory = destination.parent().unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(written)
    };
    let copied = copied.await;
    if copied.is_err() {
        let _ = fs::remove_file(&draft);
    }
    copied
}

/// Reads the whole database `file` and checks its structure.
///
/// # Errors
/// [`CopyError::Damaged`] with the first flaw.
pub async fn verify(file: &Path) -> Result<(), CopyError> {
    let mut connection = open(file).await?;
    let failed = |source| CopyError::Read { path: file.to_owned(), source };
    let row = sqlx::query("PRAGMA integrity_check(1)").fetch_one(&mut connection).await.map_err(failed)?;
    let flaw: String = row.try_get(0).map_err(failed)?;
    let _ = connection.close().await;
    match flaw.as_str() {
        "ok" => Ok(()),
        _ => Err(CopyError::Damaged { path: file.to_owned(), flaw }),
    }
}
