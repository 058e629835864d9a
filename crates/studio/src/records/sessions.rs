//! Browser sessions. Each has a random token, of which the digest is stored, and an expiry. A
//! session ends by signing out, by its expiry, or with the access tokens of its user.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use sea_orm::{ColumnTrait, Condition, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder, QuerySelect};

use super::entity::{session, token, user};
use super::users::{lock_user, to_user};
use super::{Damage, Records, RecordsError, cannot};
use crate::id::UserId;
use crate::token::TokenDigest;
use crate::view::User;

/// Per user. A further sign-in ends the oldest session.
const MAX_SESSIONS: u64 = 100;
/// Digests per query: databases limit the parameters of one.
const LOOKUP_BATCH: usize = 500;
/// Digits of the digest that name a session on the command line.
const ID_DIGITS: usize = 12;

/// One browser session of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The first digits of the digest, which are no secret.
    pub id: String,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

fn to_session(row: &session::Model) -> Result<SessionRecord, Damage> {
    Ok(SessionRecord {
        id: row.digest.chars().take(ID_DIGITS).collect(),
        created_at: Timestamp::from_microsecond(row.created_at_us)?,
        expires_at: Timestamp::from_microsecond(row.expires_at_us)?,
    })
}

impl Records {
    /// Opens a session for the user of an access token. None when the token is unknown or being
    /// revoked.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read or written.
    pub async fn add_session(
        &self,
        access: &TokenDigest,
        new: &TokenDigest,
        lifetime: SignedDuration,
    ) -> Result<Option<User>, RecordsError> {
        let Some(user) = self.user_by_token(access).await? else { return Ok(None) };
        let now = Timestamp::now();
        let transaction = self.database.begin().await.map_err(cannot("write"))?;
        lock_user(&transaction, &user.id).await.map_err(cannot("write"))?;
        let found = token::Entity::find_by_id(access.as_str()).one(&transaction).await.map_err(cannot("read"))?;
        if found.is_none() {
            return Ok(None);
        }
        let of_user = session::Column::User.eq(user.id.as_str());
        let kept: Vec<String> = session::Entity::find()
            .select_only()
            .column(session::Column::Digest)
            .filter(of_user.clone())
            .filter(session::Column::ExpiresAtUs.gt(now.as_microsecond()))
            .order_by_desc(session::Column::CreatedAtUs)
            .limit(MAX_SESSIONS - 1)
            .into_tuple()
            .all(&transaction)
            .await
            .map_err(cannot("read"))?;
        let others = Condition::all().add(of_user).add(session::Column::Digest.is_not_in(kept));
        session::Entity::delete_many().filter(others).exec(&transaction).await.map_err(cannot("write"))?;
        let row = session::Model {
            digest: new.as_str().to_owned(),
            user: user.id.to_string(),
            created_at_us: now.as_microsecond(),
            expires_at_us: now.saturating_add(lifetime).map_err(cannot("write"))?.as_microsecond(),
        };
        let inserted = session::Entity::insert(row.into_active_model()).exec_without_returning(&transaction).await;
        inserted.map_err(cannot("write"))?;
        transaction.commit().await.map_err(cannot("write"))?;
        Ok(Some(user))
    }

    /// The user of a session; none when it has ended.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn user_by_session(&self, session: &TokenDigest) -> Result<Option<User>, RecordsError> {
        let row = session::Entity::find_by_id(session.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        let now = Timestamp::now().as_microsecond();
        let Some(row) = row.filter(|row| session.is(&row.digest) && row.expires_at_us > now) else { return Ok(None) };
        let row = user::Entity::find_by_id(row.user).one(&self.database).await.map_err(cannot("read"))?;
        row.map(|row| to_user(row).map_err(cannot("understand"))).transpose()
    }

    /// The unexpired sessions of a user, the newest first.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn sessions(&self, user: &UserId) -> Result<Vec<SessionRecord>, RecordsError> {
        let rows = session::Entity::find()
            .filter(session::Column::User.eq(user.as_str()))
            .filter(session::Column::ExpiresAtUs.gt(Timestamp::now().as_microsecond()))
            .order_by_desc(session::Column::CreatedAtUs)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let sessions: Result<Vec<SessionRecord>, Damage> = rows.iter().map(to_session).collect();
        sessions.map_err(cannot("understand"))
    }

    /// Ends a session. Idempotent.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn end_session(&self, session: &TokenDigest) -> Result<(), RecordsError> {
        let ended = session::Entity::delete_by_id(session.as_str()).exec(&self.database).await;
        ended.map(drop).map_err(cannot("write"))
    }

    /// Ends all sessions of a user and returns their number.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn end_sessions(&self, user: &UserId) -> Result<u64, RecordsError> {
        let ended = session::Entity::delete_many().filter(session::Column::User.eq(user.as_str()));
        Ok(ended.exec(&self.database).await.map_err(cannot("write"))?.rows_affected)
    }

    /// The valid ones of `credentials`, which are digests of access tokens and sessions.
    pub(crate) async fn valid_credentials(&self, credentials: &[TokenDigest]) -> Result<HashSet<String>, RecordsError> {
        let now = Timestamp::now().as_microsecond();
        let mut valid = HashSet::new();
        for batch in credentials.chunks(LOOKUP_BATCH) {
            let digests: Vec<&str> = batch.iter().map(TokenDigest::as_str).collect();
            let tokens = token::Entity::find().filter(token::Column::Digest.is_in(digests.clone()));
            let tokens = tokens.all(&self.database).await.map_err(cannot("read"))?;
            valid.extend(tokens.into_iter().map(|row| row.digest));
            let sessions = session::Entity::find().filter(session::Column::Digest.is_in(digests));
            let sessions = sessions.filter(session::Column::ExpiresAtUs.gt(now));
            let sessions = sessions.all(&self.database).await.map_err(cannot("read"))?;
            valid.extend(sessions.into_iter().map(|row| row.digest));
        }
        Ok(valid)
    }
}
