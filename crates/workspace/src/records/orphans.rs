//! Orphans in a database.

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use sdk::SandboxId;
use sea_orm::sea_query::OnConflict;
use sea_orm::{EntityTrait, IntoActiveModel};

use super::database::{DatabaseRecords, cannot};
use super::entity::orphan;
use super::model::{OrphanRecord, micros};
use super::port::{OrphanRecords, RecordsError};

#[async_trait]
impl OrphanRecords for DatabaseRecords {
    async fn orphans(&self) -> Result<Vec<OrphanRecord>, RecordsError> {
        let rows = orphan::Entity::find().all(&self.database).await.map_err(cannot("read"))?;
        let mut orphans: Vec<OrphanRecord> =
            rows.into_iter().map(|row| from_row(row).map_err(cannot("decode"))).collect::<Result<_, _>>()?;
        orphans.sort_by(|a, b| a.sandbox.as_str().cmp(b.sandbox.as_str()));
        Ok(orphans)
    }

    async fn record_orphan(&self, orphan: &OrphanRecord) -> Result<(), RecordsError> {
        let OrphanRecord { sandbox, provider, workspace, seen_at, watched } = orphan;
        let row = orphan::Model {
            sandbox: sandbox.to_string(),
            provider: provider.to_string(),
            workspace: workspace.clone(),
            seen_at_us: seen_at.as_microsecond(),
            watched_us: micros(*watched),
        };
        let known = OnConflict::column(orphan::Column::Sandbox)
            .update_columns([
                orphan::Column::Provider,
                orphan::Column::Workspace,
                orphan::Column::SeenAtUs,
                orphan::Column::WatchedUs,
            ])
            .to_owned();
        let noted = orphan::Entity::insert(row.into_active_model()).on_conflict(known);
        noted.exec_without_returning(&self.database).await.map(drop).map_err(cannot("write"))
    }

    async fn forget_orphan(&self, sandbox: &SandboxId) -> Result<(), RecordsError> {
        let find_missing = orphan::Entity::delete_by_id(sandbox.as_str()).exec(&self.database).await;
        find_missing.map(drop).map_err(cannot("change"))
    }
}

fn from_row(row: orphan::Model) -> Result<OrphanRecord, Box<dyn Error + Send + Sync>> {
    Ok(OrphanRecord {
        sandbox: row.sandbox.parse()?,
        provider: row.provider.parse()?,
        workspace: row.workspace,
        seen_at: Timestamp::from_microsecond(row.seen_at_us)?,
        watched: Duration::from_micros(u64::try_from(row.watched_us)?),
    })
}
