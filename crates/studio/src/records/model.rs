//! A job as the records have it.

use agent::RunId;
use agent::approval::Policy;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use workspace::WorkspaceName;
use workspace::snapshot::{ProjectId as SnapshotsOf, Stamp};

use super::Damage;
use super::entity::job;
use crate::id::{JobId, ProjectId, UserId};
use crate::job::Status;

/// What was asked for, besides the goal and the model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub phases: Vec<String>,
    pub repo: Option<String>,
    pub branch: Option<String>,
    pub template: Option<String>,
    pub budget_usd: Option<f64>,
    pub policy: Policy,
}

/// A job that is taken in.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    pub id: JobId,
    pub project: ProjectId,
    pub user: UserId,
    pub goal: String,
    pub spec: Spec,
    pub model: String,
    /// Whose newest snapshot has the files to begin with.
    pub begins_from: Option<SnapshotsOf>,
    pub rebuilt_from: Option<JobId>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    pub id: JobId,
    pub project: ProjectId,
    pub user: UserId,
    pub goal: String,
    pub spec: Spec,
    pub model: String,
    pub status: Status,
    pub stage_label: String,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub build_version: u32,
    pub workspace: WorkspaceName,
    /// Where the project is in it.
    pub workspace_path: String,
    pub begins_from: Option<SnapshotsOf>,
    pub rebuilt_from: Option<JobId>,
    pub sandbox_id: Option<String>,
    /// Only ever true when a pause has succeeded.
    pub sandbox_paused: bool,
    pub sandbox_expires_at: Option<Timestamp>,
    /// Kept while it sleeps; whoever shows it leaves it out then.
    pub preview_url: Option<String>,
    pub preview_port: Option<u16>,
    pub cost_nanos: u64,
    pub error_message: Option<String>,
    /// Written before the run begins.
    pub run: Option<RunId>,
    /// So many entries of the run's journal stand on the timeline.
    pub run_entries: u64,
    /// Counts the workers that had it: what one writes counts only while it is the last.
    pub attempt: i64,
    /// How many of them, since it last got further, neither came to an end with it nor gave it back
    /// for another to have at once.
    pub broken_off: i64,
    pub lease_until: Timestamp,
    pub cancel_asked: bool,
    /// No worker has anything more to do for it.
    pub settled: bool,
    /// How many events it has.
    pub events: u64,
    /// A page has opened the timeline before the job was settled: it shows the preview once the job
    /// is ready.
    pub watched: bool,
    /// Such a page has loaded the preview.
    pub preview_loaded: bool,
    /// Its files are to be those of this snapshot again.
    pub restore_to: Option<Stamp>,
    /// Nobody sees it any more; what it used stays known. Once it is settled, nothing else is left of it.
    pub deleted: bool,
}

/// Who changes a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// A worker, by its attempt: it changes nothing any more once another has the job.
    By(i64),
    /// Whoever may.
    Anybody,
}

/// What changes in a job; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// From one of these, and only then.
    pub status: Option<(Status, Status)>,
    pub stage_label: Option<String>,
    pub finished_at: Option<Timestamp>,
    pub sandbox_id: Option<Option<String>>,
    pub sandbox_paused: Option<bool>,
    pub sandbox_expires_at: Option<Option<Timestamp>>,
    pub preview: Option<Option<(String, u16)>>,
    pub cost_nanos: Option<u64>,
    pub error_message: Option<String>,
    pub run: Option<RunId>,
    /// From so many to so many, and only then.
    pub run_entries: Option<(u64, u64)>,
    pub cancel_asked: Option<bool>,
    pub watched: Option<bool>,
    pub preview_loaded: Option<bool>,
    /// To false only from true: of two who have something to be done, one comes first.
    pub settled: Option<bool>,
    pub restore_to: Option<Option<Stamp>>,
    pub deleted: Option<bool>,
    /// The job got further: workers that broke off before count no more.
    pub progress: bool,
    /// Gives the job's credit back, for this reason.
    pub refund: Option<&'static str>,
}

pub(super) fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn time(micros: i64) -> Result<Timestamp, Damage> {
    Ok(Timestamp::from_microsecond(micros)?)
}

impl JobRecord {
    pub(super) fn from_row(row: job::Model) -> Result<Self, Damage> {
        let status = Status::ALL.into_iter().find(|status| status.as_str() == row.status);
        Ok(Self {
            id: row.id.parse()?,
            project: row.project.parse()?,
            user: row.user.parse()?,
            goal: row.goal,
            spec: serde_json::from_str(&row.spec)?,
            model: row.model,
            status: status.ok_or_else(|| format!("unknown status `{}`", row.status))?,
            stage_label: row.stage_label,
            created_at: time(row.created_at_us)?,
            finished_at: row.finished_at_us.map(time).transpose()?,
            build_version: u32::try_from(row.build_version)?,
            workspace: row.workspace.parse()?,
            workspace_path: row.workspace_path,
            begins_from: row.begins_from.map(|id| id.parse()).transpose()?,
            rebuilt_from: row.rebuilt_from.map(|id| id.parse()).transpose()?,
            sandbox_id: row.sandbox_id,
            sandbox_paused: row.sandbox_paused,
            sandbox_expires_at: row.sandbox_expires_at_us.map(time).transpose()?,
            preview_url: row.preview_url,
            preview_port: row.preview_port.map(u16::try_from).transpose()?,
            cost_nanos: u64::try_from(row.cost_nanos)?,
            error_message: row.error_message,
            run: row.run.map(|id| id.parse()).transpose()?,
            run_entries: u64::try_from(row.run_entries)?,
            attempt: row.attempt,
            broken_off: row.broken_off,
            lease_until: time(row.lease_until_us)?,
            cancel_asked: row.cancel_asked,
            settled: row.settled,
            events: u64::try_from(row.events)?,
            watched: row.watched,
            preview_loaded: row.preview_loaded,
            restore_to: row.restore_to.map(|stamp| stamp.parse()).transpose()?,
            deleted: row.deleted,
        })
    }
}
