//! Timeline events of jobs. Event numbers have no gaps, because they are assigned in the
//! transaction that updates the job's row.

use jiff::Timestamp;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DbErr, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder, QuerySelect,
};

use super::entity::{event, job};
use super::model::to_i64;
use super::{Damage, Records, RecordsError, cannot};
use crate::events::{EventBody, TimelineEvent};
use crate::id::JobId;

/// Rows per read.
const PAGE: u64 = 500;

/// Inserts events after the first `count` of a job. The caller holds the job's row.
pub(super) async fn append<C: ConnectionTrait>(
    database: &C,
    job: &str,
    count: i64,
    events: &[(Timestamp, EventBody)],
) -> Result<(), DbErr> {
    let rows = events.iter().zip(count + 1..).map(|((at, body), seq)| {
        let body = serde_json::to_string(body).expect("texts, numbers and JSON values are JSON");
        event::Model { job: job.to_owned(), seq, at_us: at.as_microsecond(), body }.into_active_model()
    });
    if events.is_empty() {
        return Ok(());
    }
    event::Entity::insert_many(rows).exec_without_returning(database).await.map(drop)
}

fn from_row(row: &event::Model) -> Result<TimelineEvent, Damage> {
    Ok(TimelineEvent {
        seq: Some(u64::try_from(row.seq)?),
        ts: Timestamp::from_microsecond(row.at_us)?,
        body: serde_json::from_str(&row.body)?,
    })
}

impl Records {
    /// One page of a job's events after number `after`, in order.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn events(&self, job: &JobId, after: u64) -> Result<Vec<TimelineEvent>, RecordsError> {
        let rows = event::Entity::find()
            .filter(event::Column::Job.eq(job.as_str()))
            .filter(event::Column::Seq.gt(to_i64(after)))
            .order_by_asc(event::Column::Seq)
            .limit(PAGE)
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read: Result<Vec<_>, Damage> = rows.iter().map(from_row).collect();
        read.map_err(cannot("understand"))
    }

    /// The number of events of each job; none for deleted jobs.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn event_counts(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Option<u64>)>, RecordsError> {
        let rows: Vec<(String, i64, bool)> = job::Entity::find()
            .select_only()
            .columns([job::Column::Id, job::Column::Events, job::Column::Deleted])
            .filter(job::Column::Id.is_in(jobs.iter().map(JobId::as_str)))
            .into_tuple()
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read = |(job, count, deleted): (String, i64, bool)| {
            let count = if deleted { None } else { Some(u64::try_from(count)?) };
            Ok((job.parse()?, count))
        };
        let read: Result<Vec<_>, Damage> = rows.into_iter().map(read).collect();
        read.map_err(cannot("understand"))
    }
}
