//! Users, their tokens and their credits.

use database::Transaction;
use jiff::Timestamp;
use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{
    ColumnTrait, ConnectionTrait, DbErr, EntityTrait, IntoActiveModel, PaginatorTrait, QueryFilter, QueryOrder,
    QuerySelect, SqlErr,
};
use uuid::Uuid;

use super::entity::{credit, session, token, user};
use super::{Damage, Records, RecordsError, cannot};
use crate::id::{JobId, UserId};
use crate::token::TokenDigest;
use crate::view::User;

/// The result of a change of credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreditChange {
    /// The remaining credits.
    Done(i64),
    /// The user has fewer credits than the change takes.
    TooFew,
}

/// Why a user was not added.
#[derive(Debug, thiserror::Error)]
pub enum AddUserError {
    #[error("there is a user {0} already")]
    Taken(String),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

pub(super) fn to_user(row: user::Model) -> Result<User, Damage> {
    Ok(User { id: row.id.parse()?, name: row.name })
}

impl Records {
    /// Adds a user with a token and credits.
    ///
    /// # Errors
    /// [`AddUserError::Taken`] when the name exists, [`AddUserError::Records`] when the records
    /// cannot be written.
    pub async fn add_user(&self, name: &str, token: &TokenDigest, credits: i64) -> Result<User, AddUserError> {
        let (id, now) = (UserId::new(), Timestamp::now());
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        let row =
            user::Model { id: id.to_string(), name: name.to_owned(), created_at_us: now.as_microsecond(), turn: 0 };
        match user::Entity::insert(row.into_active_model()).exec_without_returning(&transaction).await {
            Err(error) if matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_))) => {
                return Err(AddUserError::Taken(name.to_owned()));
            }
            other => other.map_err(cannot("write"))?,
        };
        insert_token(&transaction, &id, token, now).await.map_err(cannot("write"))?;
        if credits != 0 {
            insert_credit(&transaction, &id, credits, "for the beginning", None, now).await.map_err(cannot("write"))?;
        }
        transaction.commit().await.map_err(cannot("write"))?;
        Ok(User { id, name: name.to_owned() })
    }

    /// All users, by name.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn users(&self) -> Result<Vec<User>, RecordsError> {
        let rows = user::Entity::find().order_by_asc(user::Column::Name).all(&self.database).await;
        let users: Result<Vec<User>, Damage> = rows.map_err(cannot("read"))?.into_iter().map(to_user).collect();
        users.map_err(cannot("understand"))
    }

    /// The user with this name.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn user_by_name(&self, name: &str) -> Result<Option<User>, RecordsError> {
        let row = user::Entity::find().filter(user::Column::Name.eq(name)).one(&self.database).await;
        row.map_err(cannot("read"))?.map(|row| to_user(row).map_err(cannot("understand"))).transpose()
    }

    /// The user of an access token.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn user_by_token(&self, token: &TokenDigest) -> Result<Option<User>, RecordsError> {
        let row = token::Entity::find_by_id(token.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        let Some(row) = row else { return Ok(None) };
        // Timing the index reveals at most the beginning of a digest; the whole is compared in
        // constant time.
        if !token.is(&row.digest) {
            return Ok(None);
        }
        let row = user::Entity::find_by_id(row.user).one(&self.database).await.map_err(cannot("read"))?;
        row.map(|row| to_user(row).map_err(cannot("understand"))).transpose()
    }

    /// Replaces all access tokens of a user, and ends the user's sessions.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn replace_token(&self, user: &UserId, token: &TokenDigest) -> Result<(), RecordsError> {
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        lock_user(&transaction, user).await.map_err(cannot("write"))?;
        let old = token::Entity::delete_many().filter(token::Column::User.eq(user.as_str()));
        old.exec(&transaction).await.map_err(cannot("write"))?;
        let sessions = session::Entity::delete_many().filter(session::Column::User.eq(user.as_str()));
        sessions.exec(&transaction).await.map_err(cannot("write"))?;
        insert_token(&transaction, user, token, Timestamp::now()).await.map_err(cannot("write"))?;
        transaction.commit().await.map_err(cannot("write"))
    }

    /// The remaining credits of a user.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn credits(&self, user: &UserId) -> Result<i64, RecordsError> {
        balance(&self.database, user).await.map_err(cannot("read"))
    }

    /// Adds `change` to a user's credits. A negative change takes no more than there are.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn credit(&self, user: &UserId, change: i64, reason: &str) -> Result<CreditChange, RecordsError> {
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        match charge(&transaction, user, change, reason, None).await.map_err(cannot("write"))? {
            CreditChange::TooFew => Ok(CreditChange::TooFew),
            done => {
                transaction.commit().await.map_err(cannot("write"))?;
                Ok(done)
            }
        }
    }

    /// Whether any user exists.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn has_users(&self) -> Result<bool, RecordsError> {
        Ok(user::Entity::find().count(&self.database).await.map_err(cannot("read"))? > 0)
    }
}

/// Changes credits inside of a transaction, which locks the user until its end.
pub(super) async fn charge(
    transaction: &Transaction,
    user: &UserId,
    change: i64,
    reason: &str,
    job: Option<&JobId>,
) -> Result<CreditChange, DbErr> {
    lock_user(transaction, user).await?;
    let left = balance(transaction, user).await?.saturating_add(change);
    if change < 0 && left < 0 {
        return Ok(CreditChange::TooFew);
    }
    insert_credit(transaction, user, change, reason, job, Timestamp::now()).await?;
    Ok(CreditChange::Done(left))
}

/// Serialises transactions that change the credits, tokens or sessions of one user.
pub(super) async fn lock_user(transaction: &Transaction, user: &UserId) -> Result<(), DbErr> {
    user::Entity::update_many()
        .col_expr(user::Column::Turn, Expr::col(user::Column::Turn).add(1))
        .filter(user::Column::Id.eq(user.as_str()))
        .exec(transaction)
        .await
        .map(drop)
}

async fn insert_credit<C: ConnectionTrait>(
    database: &C,
    user: &UserId,
    change: i64,
    reason: &str,
    job: Option<&JobId>,
    at: Timestamp,
) -> Result<(), DbErr> {
    let row = credit::Model {
        id: Uuid::new_v4().to_string(),
        user: user.to_string(),
        at_us: at.as_microsecond(),
        change,
        reason: reason.to_owned(),
        job: job.map(ToString::to_string),
    };
    credit::Entity::insert(row.into_active_model()).exec_without_returning(database).await.map(drop)
}

async fn insert_token<C: ConnectionTrait>(
    database: &C,
    user: &UserId,
    token: &TokenDigest,
    at: Timestamp,
) -> Result<(), DbErr> {
    let row =
        token::Model { digest: token.as_str().to_owned(), user: user.to_string(), created_at_us: at.as_microsecond() };
    token::Entity::insert(row.into_active_model()).exec_without_returning(database).await.map(drop)
}

async fn balance<C: ConnectionTrait>(database: &C, user: &UserId) -> Result<i64, DbErr> {
    // Added here, because the type of a SUM differs between the databases, and the rows are few.
    let changes: Vec<i64> = credit::Entity::find()
        .select_only()
        .column(credit::Column::Change)
        .filter(credit::Column::User.eq(user.as_str()))
        .into_tuple()
        .all(database)
        .await?;
    Ok(changes.into_iter().fold(0, i64::saturating_add))
}
