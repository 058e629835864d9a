//! An opened database: sea-orm's connection behind the [`WriteGate`] of the file.
//!
//! Invariant: `Ok` from a statement outside of a transaction, or from a commit, means that the
//! change is on the disk. SQLite rolls a transaction back by itself when the disk is full; sqlx
//! does not notice. A transaction in which a statement failed that way therefore accepts no further
//! statement (each would be committed alone), and the pool closes its connection.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use durable::Unwritable;
use futures::future::BoxFuture;
use sea_orm::sqlx::{Connection as _, Error as SqlxError, Executor as _, SqliteConnection};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseExecutor, DatabaseTransaction, DbBackend, DbErr, ExecResult,
    IntoDatabaseExecutor, QueryResult, Statement, TransactionTrait as _,
};
use tracing::warn;

use crate::write_gate::{self, WriteGate};

/// SQLite's `SQLITE_ERROR`, returned by `ROLLBACK` when no transaction is open.
const NO_TRANSACTION: &str = "1";

/// An opened database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Database {
    pub(crate) writer: DatabaseConnection,
    /// Postgres uses one pool for both.
    pub(crate) readers: DatabaseConnection,
    /// Present for a SQLite file.
    pub(crate) gate: Option<Arc<WriteGate>>,
}

impl Database {
    /// Why changes are refused, while they are. Performs no I/O.
    pub fn fault(&self) -> Option<Unwritable> {
        self.gate.as_ref().and_then(|gate| gate.fault())
    }

    /// Closes the connections and waits for them. Dropping closes them without waiting.
    ///
    /// # Errors
    /// [`DbErr`] when a connection does not close cleanly.
    pub async fn close(self) -> Result<(), DbErr> {
        self.readers.close().await?;
        self.writer.close().await
    }

    /// Starts a transaction.
    ///
    /// # Errors
    /// [`DbErr`] while writes are refused, or when no connection is free in time.
    pub async fn begin(&self) -> Result<Transaction, DbErr> {
        self.admit()?;
        let inner = self.writer.begin().await.map_err(|error| self.classify(error))?;
        Ok(Transaction { inner, database: self.clone(), broken: OnceLock::new() })
    }

    fn admit(&self) -> Result<(), DbErr> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate.admit())
    }

    fn classify(&self, error: DbErr) -> DbErr {
        match &self.gate {
            Some(gate) => gate.classify(error, &self.writer),
            None => error,
        }
    }

    /// Picks the pool for a statement outside of a transaction: queries go to the readers, which do
    /// not wait for a commit.
    fn route(&self, sql: &str) -> Result<&DatabaseConnection, DbErr> {
        if is_query(sql) {
            return Ok(&self.readers);
        }
        self.admit()?;
        Ok(&self.writer)
    }
}

fn is_query(sql: &str) -> bool {
    sql.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("select"))
}

/// Migrations use the writer connection.
impl<'c> IntoDatabaseExecutor<'c> for &'c Database {
    fn into_database_executor(self) -> DatabaseExecutor<'c> {
        (&self.writer).into_database_executor()
    }
}

#[async_trait]
impl ConnectionTrait for Database {
    fn get_database_backend(&self) -> DbBackend {
        self.writer.get_database_backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.admit()?;
        self.writer.execute_raw(statement).await.map_err(|error| self.classify(error))
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.admit()?;
        self.writer.execute_unprepared(sql).await.map_err(|error| self.classify(error))
    }

    /// Reads a change with RETURNING to its end: SQLite commits there, and sqlx drops the error of
    /// a commit that fails after the first row.
    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        if is_query(&statement.sql) {
            return self.readers.query_one_raw(statement).await.map_err(|error| self.classify(error));
        }
        Ok(self.query_all_raw(statement).await?.into_iter().next())
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.route(&statement.sql)?.query_all_raw(statement).await.map_err(|error| self.classify(error))
    }
}

/// An open transaction. Dropping it rolls it back.
#[derive(Debug)]
pub struct Transaction {
    inner: DatabaseTransaction,
    database: Database,
    /// The error that made SQLite roll back.
    broken: OnceLock<DbErr>,
}

impl Transaction {
    /// # Errors
    /// The [`DbErr`] of an earlier statement that ended the transaction.
    fn check(&self) -> Result<(), DbErr> {
        self.broken.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn classify(&self, error: DbErr) -> DbErr {
        let classified = self.database.classify(error);
        if write_gate::find_carried(&classified).is_some() {
            // Only the first error matters.
            let _ = self.broken.set(classified.clone());
        }
        classified
    }

    /// Makes the changes durable.
    ///
    /// # Errors
    /// [`DbErr`]: no change is known to be written, and the pool closes the connection.
    pub async fn commit(self) -> Result<(), DbErr> {
        self.check()?;
        let Self { inner, database, .. } = self;
        inner.commit().await.map_err(|error| database.classify(error))
    }
}

#[async_trait]
impl ConnectionTrait for Transaction {
    fn get_database_backend(&self) -> DbBackend {
        self.inner.get_database_backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.check()?;
        self.inner.execute_raw(statement).await.map_err(|error| self.classify(error))
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.check()?;
        self.inner.execute_unprepared(sql).await.map_err(|error| self.classify(error))
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.check()?;
        self.inner.query_one_raw(statement).await.map_err(|error| self.classify(error))
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.check()?;
        self.inner.query_all_raw(statement).await.map_err(|error| self.classify(error))
    }
}

/// Whether the pool may reuse a connection: no transaction is open, neither by sqlx's count nor by
/// SQLite's.
///
/// After a failed commit or rollback the two counts differ: sqlx would treat the next `begin` as a
/// savepoint inside of a transaction that SQLite has ended, and every later commit would release
/// that savepoint and write nothing.
pub(crate) fn is_reusable(connection: &mut SqliteConnection) -> BoxFuture<'_, Result<bool, SqlxError>> {
    Box::pin(async move {
        // The connection's thread executes statements in order: after this one, a rollback queued
        // by a drop is done, and sqlx's transaction depth is final.
        match connection.execute("ROLLBACK").await {
            Err(SqlxError::Database(error)) if error.code().as_deref() == Some(NO_TRANSACTION) => {}
            Err(error) => return Err(error),
            Ok(_) => {
                warn!("closed a database connection whose transaction sqlx did not track");
                return Ok(false);
            }
        }
        if connection.is_in_transaction() {
            warn!("closed a database connection whose transaction did not end");
            return Ok(false);
        }
        Ok(true)
    })
}
