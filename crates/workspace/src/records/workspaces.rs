//! Workspaces and their leases in a database.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use ::database::{Transaction, Unwritable};
use async_trait::async_trait;
use jiff::Timestamp;
use sdk::Secret;
use sea_orm::sea_query::{Expr, ExprTrait, OnConflict, Query};
use sea_orm::{
    ActiveModelTrait, ColumnTrait, ConnectionTrait, DbBackend, DbErr, EntityTrait, IntoActiveModel, QueryFilter,
    QueryOrder, SqlErr,
};

use super::database::{DatabaseRecords, cannot};
use super::entity::{lease, workspace};
use super::memory::later;
use super::model::{Lease, WorkspaceRecord, WorkspaceState};
use super::port::{LeaseError, Leases, RecordChangeError, RecordsError, WorkspaceRecords};
use crate::name::WorkspaceName;

impl DatabaseRecords {
    /// Starts a transaction in which `lease` stays the newest: the update locks its row.
    async fn begin_under_lease(&self, held: &Lease) -> Result<Transaction, RecordChangeError> {
        let transaction = self.database.begin().await.map_err(cannot("change"))?;
        let kept = lease::Entity::update_many()
            .col_expr(lease::Column::Fence, Expr::value(held.fence))
            .filter(lease::Column::Workspace.eq(held.workspace.as_str()))
            .filter(lease::Column::Fence.eq(held.fence))
            .exec(&transaction)
            .await
            .map_err(cannot("change"))?;
        match kept.rows_affected {
            0 => Err(RecordChangeError::LeaseLost(held.workspace.clone())),
            _ => Ok(transaction),
        }
    }
}

#[async_trait]
impl WorkspaceRecords for DatabaseRecords {
    fn fault(&self) -> Option<Unwritable> {
        self.database.fault()
    }

    async fn workspace(&self, name: &WorkspaceName) -> Result<Option<WorkspaceRecord>, RecordsError> {
        let row = workspace::Entity::find_by_id(name.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        row.map(|row| from_row(row).map_err(cannot("decode"))).transpose()
    }

    async fn workspaces_and_unreadable(&self) -> Result<(Vec<WorkspaceRecord>, Vec<String>), RecordsError> {
        let rows = workspace::Entity::find().order_by_asc(workspace::Column::Name).all(&self.database).await;
        let rows = rows.map_err(cannot("read"))?;
        let (mut read, mut unreadable) = (Vec::new(), Vec::new());
        for row in rows {
            let name = row.name.clone();
            match self.set_aside.keep("workspace", &name, from_row(row)) {
                Some(record) => read.push(record),
                None => unreadable.push(name),
            }
        }
        // Databases collate differently.
        read.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((read, unreadable))
    }

    async fn insert_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError> {
        let row = to_row(record).map_err(cannot("write"))?.into_active_model();
        let transaction = self.begin_under_lease(lease).await?;
        let inserted = workspace::Entity::insert(row).exec_without_returning(&transaction).await;
        match inserted {
            Err(error) if matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_))) => {
                return Err(RecordChangeError::Exists(record.name.clone()));
            }
            Err(error) => return Err(cannot("write")(error).into()),
            Ok(_) => {}
        }
        transaction.commit().await.map_err(|error| cannot("write")(error).into())
    }

    async fn update_workspace(&self, record: &WorkspaceRecord, lease: &Lease) -> Result<(), RecordChangeError> {
        let mut change = to_row(record).map_err(cannot("write"))?.into_active_model().reset_all();
        change.name = sea_orm::ActiveValue::NotSet;
        let transaction = self.begin_under_lease(lease).await?;
        let updated = workspace::Entity::update_many()
            .set(change)
            .filter(workspace::Column::Name.eq(record.name.as_str()))
            .exec(&transaction)
            .await
            .map_err(cannot("write"))?;
        if updated.rows_affected == 0 {
            return Err(RecordChangeError::LeaseLost(record.name.clone()));
        }
        transaction.commit().await.map_err(|error| cannot("write")(error).into())
    }

    async fn remove_workspace(&self, lease: &Lease) -> Result<(), RecordChangeError> {
        let transaction = self.begin_under_lease(lease).await?;
        let removed = workspace::Entity::delete_by_id(lease.workspace.as_str()).exec(&transaction).await;
        removed.map_err(cannot("change"))?;
        transaction.commit().await.map_err(|error| RecordChangeError::from(cannot("change")(error)))?;
        // The deleted row is still in SQLite's write-ahead log. A concurrent reader prevents
        // truncation; then a later checkpoint truncates it.
        if self.database.get_database_backend() == DbBackend::Sqlite {
            let _later = self.database.execute_unprepared("PRAGMA wal_checkpoint(TRUNCATE)").await;
        }
        Ok(())
    }
}

#[async_trait]
impl Leases for DatabaseRecords {
    async fn take_lease(
        &self,
        workspace: &WorkspaceName,
        owner: &str,
        now: Timestamp,
        time: Duration,
    ) -> Result<Lease, LeaseError> {
        let until = later(now, time);
        // One statement, so that exactly one of several concurrent callers succeeds.
        let claim = Query::insert()
            .into_table(lease::Entity)
            .columns([lease::Column::Workspace, lease::Column::Owner, lease::Column::Fence, lease::Column::UntilUs])
            .values_panic([workspace.as_str().into(), owner.into(), 1_i64.into(), until.as_microsecond().into()])
            .on_conflict(
                OnConflict::column(lease::Column::Workspace)
                    .value(lease::Column::Owner, owner)
                    .value(lease::Column::Fence, Expr::col((lease::Entity, lease::Column::Fence)).add(1_i64))
                    .value(lease::Column::UntilUs, until.as_microsecond())
                    .action_and_where(Expr::col((lease::Entity, lease::Column::UntilUs)).lte(now.as_microsecond()))
                    .to_owned(),
            )
            .returning_col(lease::Column::Fence)
            .to_owned();
        let claimed = self.database.query_one(&claim).await.map_err(cannot("change"))?;
        if let Some(row) = claimed {
            let fence = row.try_get::<i64>("", "fence").map_err(cannot("decode"))?;
            return Ok(Lease { workspace: workspace.clone(), owner: owner.to_owned(), fence, until });
        }
        let held = lease::Entity::find_by_id(workspace.as_str()).one(&self.database).await.map_err(cannot("read"))?;
        let (owner, fence, until_us) =
            held.map_or_else(|| ("another process".to_owned(), 0, 0), |row| (row.owner, row.fence, row.until_us));
        let until = Timestamp::from_microsecond(until_us).map_err(cannot("decode"))?;
        Err(LeaseError::Held { workspace: workspace.clone(), owner, fence, until })
    }

    async fn renew_lease(&self, held: &Lease, now: Timestamp, time: Duration) -> Result<Lease, LeaseError> {
        let until = later(now, time);
        let renewed = lease::Entity::update_many()
            .col_expr(lease::Column::UntilUs, Expr::value(until.as_microsecond()))
            .filter(lease::Column::Workspace.eq(held.workspace.as_str()))
            .filter(lease::Column::Fence.eq(held.fence))
            .filter(lease::Column::UntilUs.ne(0_i64))
            .exec(&self.database)
            .await
            .map_err(cannot("change"))?;
        match renewed.rows_affected {
            0 => Err(LeaseError::Lost(held.workspace.clone())),
            _ => Ok(Lease { until, ..held.clone() }),
        }
    }

    async fn break_lease(&self, void: &Lease) -> Result<(), RecordsError> {
        let broken = lease::Entity::update_many()
            .col_expr(lease::Column::UntilUs, Expr::value(0_i64))
            .filter(lease::Column::Workspace.eq(void.workspace.as_str()))
            .filter(lease::Column::Owner.eq(void.owner.as_str()))
            .filter(lease::Column::Fence.eq(void.fence))
            .filter(lease::Column::UntilUs.eq(void.until.as_microsecond()))
            .exec(&self.database)
            .await;
        broken.map(|_| ()).map_err(cannot("change"))
    }

    async fn release_lease(&self, held: &Lease) -> Result<(), RecordsError> {
        let released: Result<_, DbErr> = lease::Entity::update_many()
            .col_expr(lease::Column::UntilUs, Expr::value(0_i64))
            .filter(lease::Column::Workspace.eq(held.workspace.as_str()))
            .filter(lease::Column::Fence.eq(held.fence))
            .exec(&self.database)
            .await;
        released.map(|_| ()).map_err(cannot("change"))
    }
}

type Damage = Box<dyn Error + Send + Sync>;

fn to_row(record: &WorkspaceRecord) -> Result<workspace::Model, Damage> {
    let WorkspaceRecord {
        name,
        project,
        provider,
        sandbox,
        state,
        paused,
        template,
        created_at,
        expires_at,
        services,
        env,
        details,
    } = record;
    let env: BTreeMap<&str, &str> = env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    Ok(workspace::Model {
        name: name.to_string(),
        project: project.to_string(),
        provider: provider.to_string(),
        sandbox: sandbox.as_ref().map(ToString::to_string),
        state: state.as_str().to_owned(),
        paused: *paused,
        template: template.clone(),
        created_at_us: created_at.as_microsecond(),
        expires_at_us: expires_at.as_microsecond(),
        services: serde_json::to_string(services)?,
        env: serde_json::to_string(&env)?,
        details: serde_json::to_string(details)?,
    })
}

fn from_row(row: workspace::Model) -> Result<WorkspaceRecord, Damage> {
    let known = WorkspaceState::ALL.into_iter().find(|state| state.as_str() == row.state);
    let env: BTreeMap<String, String> = serde_json::from_str(&row.env)?;
    Ok(WorkspaceRecord {
        name: row.name.parse()?,
        project: row.project.parse()?,
        provider: row.provider.parse()?,
        sandbox: row.sandbox.map(|id| id.parse()).transpose()?,
        state: known.ok_or_else(|| format!("unknown state `{}`", row.state))?,
        paused: row.paused,
        template: row.template,
        created_at: Timestamp::from_microsecond(row.created_at_us)?,
        expires_at: Timestamp::from_microsecond(row.expires_at_us)?,
        services: serde_json::from_str(&row.services)?,
        env: env.into_iter().map(|(name, value)| (name, Secret::from(value))).collect(),
        details: serde_json::from_str(&row.details)?,
    })
}
