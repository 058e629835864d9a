//! Screenshots of jobs. They are in the database, so that every process can serve them.

use bytes::Bytes;
use jiff::Timestamp;
use sea_orm::sea_query::OnConflict;
use sea_orm::{ColumnTrait, EntityTrait, IntoActiveModel, QueryFilter, QueryOrder, QuerySelect};

use super::entity::screenshot;
use super::{Damage, Records, RecordsError, cannot};
use crate::id::{JobId, ScreenshotId};
use crate::view::{ScreenshotFile, ScreenshotView};

/// A screenshot to be saved.
#[derive(Debug, Clone)]
pub struct NewScreenshot {
    /// Saving the same id again changes nothing.
    pub id: ScreenshotId,
    pub device: String,
    pub width: u32,
    pub height: u32,
    pub reason: String,
    pub media_type: String,
    pub content: Bytes,
}

type Row = (String, String, i32, i32, i64, String);

fn from_row(job: &JobId, (id, device, width, height, taken_at_us, reason): Row) -> Result<ScreenshotView, Damage> {
    let id: ScreenshotId = id.parse()?;
    Ok(ScreenshotView {
        url: id.url(job),
        id,
        device,
        width: u32::try_from(width)?,
        height: u32::try_from(height)?,
        taken_at: Timestamp::from_microsecond(taken_at_us)?,
        reason,
    })
}

impl Records {
    /// Saves a screenshot of a job.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be written.
    pub async fn save_screenshot(&self, job: &JobId, new: NewScreenshot) -> Result<ScreenshotView, RecordsError> {
        let NewScreenshot { id, device, width, height, reason, media_type, content } = new;
        let kept = ScreenshotView { url: id.url(job), id, device, width, height, taken_at: Timestamp::now(), reason };
        let row = screenshot::Model {
            id: kept.id.to_string(),
            job: job.to_string(),
            device: kept.device.clone(),
            width: i32::try_from(width).unwrap_or(i32::MAX),
            height: i32::try_from(height).unwrap_or(i32::MAX),
            taken_at_us: kept.taken_at.as_microsecond(),
            reason: kept.reason.clone(),
            media_type,
            content: content.into(),
        };
        let known = OnConflict::column(screenshot::Column::Id).do_nothing().to_owned();
        let insert = screenshot::Entity::insert(row.into_active_model()).on_conflict(known);
        insert.exec_without_returning(&self.database).await.map_err(cannot("write"))?;
        Ok(kept)
    }

    /// The screenshots of a job, the newest first.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn screenshots(&self, job: &JobId) -> Result<Vec<ScreenshotView>, RecordsError> {
        let rows: Vec<Row> = screenshot::Entity::find()
            .select_only()
            .columns([
                screenshot::Column::Id,
                screenshot::Column::Device,
                screenshot::Column::Width,
                screenshot::Column::Height,
                screenshot::Column::TakenAtUs,
                screenshot::Column::Reason,
            ])
            .filter(screenshot::Column::Job.eq(job.as_str()))
            .order_by_desc(screenshot::Column::TakenAtUs)
            .into_tuple()
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read: Result<Vec<_>, Damage> = rows.into_iter().map(|row| from_row(job, row)).collect();
        read.map_err(cannot("understand"))
    }

    /// The newest desktop screenshot of each job that has one.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn newest_screenshots(&self, jobs: &[JobId]) -> Result<Vec<(JobId, ScreenshotId)>, RecordsError> {
        let rows: Vec<(String, String)> = screenshot::Entity::find()
            .select_only()
            .columns([screenshot::Column::Job, screenshot::Column::Id])
            .filter(screenshot::Column::Job.is_in(jobs.iter().map(JobId::as_str)))
            .filter(screenshot::Column::Device.eq("desktop"))
            .order_by_asc(screenshot::Column::TakenAtUs)
            .into_tuple()
            .all(&self.database)
            .await
            .map_err(cannot("read"))?;
        let read: Result<Vec<_>, Damage> = rows.into_iter().map(|(job, id)| Ok((job.parse()?, id.parse()?))).collect();
        read.map_err(cannot("understand"))
    }

    /// The content of a screenshot.
    ///
    /// # Errors
    /// [`RecordsError`] when the records cannot be read.
    pub async fn screenshot(&self, job: &JobId, id: &ScreenshotId) -> Result<Option<ScreenshotFile>, RecordsError> {
        let row = screenshot::Entity::find_by_id(id.as_str())
            .filter(screenshot::Column::Job.eq(job.as_str()))
            .one(&self.database)
            .await
            .map_err(cannot("read"))?;
        Ok(row.map(|row| ScreenshotFile { media_type: row.media_type, content: row.content.into() }))
    }
}
