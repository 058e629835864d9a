//! An opened database: sea-orm's connection behind the [`WriteGate`] of the file.
//!
//! Invariant: `Ok` from a statement outside of a transaction, or from a commit, means that the
//! change is on the disk. SQLite rolls a transaction back by itself when the disk is full; sqlx
//! does not notice. A transaction in which a statement failed that way therefore accepts no further
//! statement (each would be committed alone), and the pool closes its connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use durable::Unwritable;
use futures::future::BoxFuture;
use sea_orm::sqlx::{Connection as _, Error as SqlxError, Executor as _, SqliteConnection};
use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseConnection, DatabaseExecutor, DatabaseTransaction, DbBackend, DbErr,
    ExecResult, IntoDatabaseExecutor, IsolationLevel, QueryResult, Statement, TransactionError, TransactionOptions,
    TransactionSession, TransactionTrait,
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

#[async_trait]
impl TransactionTrait for Database {
    type Transaction = Transaction;

    async fn begin(&self) -> Result<Transaction, DbErr> {
        self.begin_with_options(TransactionOptions::default()).await
    }

    async fn begin_with_config(
        &self,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<Transaction, DbErr> {
        let options = TransactionOptions { isolation_level, access_mode, ..TransactionOptions::default() };
        self.begin_with_options(options).await
    }

    async fn begin_with_options(&self, options: TransactionOptions) -> Result<Transaction, DbErr> {
        self.admit()?;
        let inner = self.writer.begin_with_options(options).await.map_err(|error| self.classify(error))?;
        Ok(Transaction { inner, database: self.clone(), broken: Arc::default() })
    }

    async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Transaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: std::fmt::Display + std::fmt::Debug + Send,
    {
        self.transaction_with_config(callback, None, None).await
    }

    async fn transaction_with_config<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Transaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: std::fmt::Display + std::fmt::Debug + Send,
    {
        let transaction = self.begin_with_config(isolation_level, access_mode).await;
        run(transaction.map_err(TransactionError::Connection)?, callback).await
    }
}

/// An open transaction. Dropping it rolls it back.
#[derive(Debug)]
pub struct Transaction {
    inner: DatabaseTransaction,
    database: Database,
    /// The error that made SQLite roll back; shared with nested transactions.
    broken: Arc<OnceLock<DbErr>>,
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

    /// # Errors
    /// [`DbErr`]: the pool closes the connection, which rolls back too.
    pub async fn rollback(self) -> Result<(), DbErr> {
        let Self { inner, database, .. } = self;
        inner.rollback().await.map_err(|error| database.classify(error))
    }
}

#[async_trait]
impl TransactionSession for Transaction {
    async fn commit(self) -> Result<(), DbErr> {
        self.commit().await
    }

    async fn rollback(self) -> Result<(), DbErr> {
        self.rollback().await
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

#[async_trait]
impl TransactionTrait for Transaction {
    type Transaction = Self;

    async fn begin(&self) -> Result<Self, DbErr> {
        self.begin_with_options(TransactionOptions::default()).await
    }

    async fn begin_with_config(
        &self,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<Self, DbErr> {
        let options = TransactionOptions { isolation_level, access_mode, ..TransactionOptions::default() };
        self.begin_with_options(options).await
    }

    async fn begin_with_options(&self, options: TransactionOptions) -> Result<Self, DbErr> {
        self.check()?;
        let inner = self.inner.begin_with_options(options).await.map_err(|error| self.classify(error))?;
        Ok(Self { inner, database: self.database.clone(), broken: Arc::clone(&self.broken) })
    }

    async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Self) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: std::fmt::Display + std::fmt::Debug + Send,
    {
        self.transaction_with_config(callback, None, None).await
    }

    async fn transaction_with_config<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c Self) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: std::fmt::Display + std::fmt::Debug + Send,
    {
        let inner = self.begin_with_config(isolation_level, access_mode).await;
        run(inner.map_err(TransactionError::Connection)?, callback).await
    }
}

/// Commits when `callback` succeeds, rolls back when it fails.
async fn run<F, T, E>(transaction: Transaction, callback: F) -> Result<T, TransactionError<E>>
where
    F: for<'c> FnOnce(&'c Transaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
    T: Send,
    E: std::fmt::Display + std::fmt::Debug + Send,
{
    match callback(&transaction).await {
        Ok(done) => transaction.commit().await.map(|()| done).map_err(TransactionError::Connection),
        Err(error) => {
            transaction.rollback().await.map_err(TransactionError::Connection)?;
            Err(TransactionError::Transaction(error))
        }
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
