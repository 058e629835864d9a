//! A job in the records, and its changes.

use agent::RunId;
use agent::approval::ApprovalPolicy;
use checkpoint::{ProjectId as SnapshotsOf, Stamp};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use workspace::WorkspaceName;

use super::Damage;
use super::entity::job;
use crate::id::{JobId, ProjectId, UserId};
use crate::job::{Status, Task};

/// What a job builds. The skipped fields have columns of their own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    #[serde(skip)]
    pub goal: String,
    #[serde(skip)]
    pub model: String,
    /// The workspace whose newest snapshot the build starts from.
    #[serde(skip)]
    pub begins_from: Option<SnapshotsOf>,
    #[serde(skip)]
    pub rebuilt_from: Option<JobId>,
    pub phases: Vec<String>,
    pub repo: Option<String>,
    pub branch: Option<String>,
    pub template: Option<String>,
    pub budget_usd: Option<f64>,
    pub policy: ApprovalPolicy,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    pub id: JobId,
    pub project: ProjectId,
    pub user: UserId,
    pub spec: JobSpec,
    pub status: Status,
    pub stage_label: String,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    pub build_version: u32,
    pub workspace: WorkspaceName,
    /// The project's directory in the workspace.
    pub workspace_path: String,
    pub sandbox_id: Option<String>,
    /// True only after a successful pause.
    pub sandbox_paused: bool,
    pub sandbox_expires_at: Option<Timestamp>,
    /// Kept while the sandbox is paused; views omit it then.
    pub preview_url: Option<String>,
    pub preview_port: Option<u16>,
    pub cost_nanos: u64,
    pub error_message: Option<String>,
    /// Written before the run starts.
    pub run: Option<RunId>,
    /// Journal entries of the run that are on the timeline.
    pub run_entries: u64,
    /// The number of claims so far. A worker's writes count only while its attempt is the last.
    pub attempt: i64,
    /// Workers that were interrupted since the job last made progress, and did not release it for
    /// an immediate claim.
    pub broken_off: i64,
    pub lease_until: Timestamp,
    pub cancel_asked: bool,
    /// The job needs no worker.
    pub settled: bool,
    /// The number of its events.
    pub events: u64,
    /// A page opened the timeline before the job was settled, and shows the preview once the job is
    /// ready.
    pub watched: bool,
    /// Such a page has loaded the preview.
    pub preview_loaded: bool,
    /// The snapshot that is being restored.
    pub restore_to: Option<Stamp>,
    /// Hidden from users; its usage stays recorded. Once settled, everything else is removed.
    pub deleted: bool,
}

/// The condition under which a change of a job is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// The worker's attempt is still the last.
    Attempt(i64),
    /// No condition, for changes that are no worker's.
    None,
}

/// A change of a job. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// From and to: a compare-and-swap.
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
    /// From and to: a compare-and-swap.
    pub run_entries: Option<(u64, u64)>,
    pub cancel_asked: Option<bool>,
    pub watched: Option<bool>,
    pub preview_loaded: Option<bool>,
    /// False is set only where it is true, so that one of two concurrent operations wins.
    pub settled: Option<bool>,
    pub restore_to: Option<Option<Stamp>>,
    pub deleted: Option<bool>,
    /// The job made progress, so earlier interruptions no longer count.
    pub progress: bool,
    /// Refunds the job's credit, for this reason.
    pub refund: Option<&'static str>,
}

pub(super) fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn to_timestamp(micros: i64) -> Result<Timestamp, Damage> {
    Ok(Timestamp::from_microsecond(micros)?)
}

impl JobRecord {
    /// What its next worker does.
    pub fn task(&self) -> Task {
        match self.restore_to {
            _ if self.deleted => Task::Remove,
            Some(stamp) => Task::Restore(stamp),
            None => Task::Build,
        }
    }

    /// Whether the sandbox runs according to the records: only a running sandbox has an expiry.
    pub fn is_running(&self) -> bool {
        !self.sandbox_paused && self.sandbox_expires_at.is_some()
    }

    pub(super) fn from_row(row: job::Model) -> Result<Self, Damage> {
        let status = Status::ALL.into_iter().find(|status| status.as_str() == row.status);
        Ok(Self {
            id: row.id.parse()?,
            project: row.project.parse()?,
            user: row.user.parse()?,
            spec: JobSpec {
                goal: row.goal,
                model: row.model,
                begins_from: row.begins_from.map(|id| id.parse()).transpose()?,
                rebuilt_from: row.rebuilt_from.map(|id| id.parse()).transpose()?,
                ..serde_json::from_str(&row.spec)?
            },
            status: status.ok_or_else(|| format!("unknown status `{}`", row.status))?,
            stage_label: row.stage_label,
            created_at: to_timestamp(row.created_at_us)?,
            finished_at: row.finished_at_us.map(to_timestamp).transpose()?,
            build_version: u32::try_from(row.build_version)?,
            workspace: row.workspace.parse()?,
            workspace_path: row.workspace_path,
            sandbox_id: row.sandbox_id,
            sandbox_paused: row.sandbox_paused,
            sandbox_expires_at: row.sandbox_expires_at_us.map(to_timestamp).transpose()?,
            preview_url: row.preview_url,
            preview_port: row.preview_port.map(u16::try_from).transpose()?,
            cost_nanos: u64::try_from(row.cost_nanos)?,
            error_message: row.error_message,
            run: row.run.map(|id| id.parse()).transpose()?,
            run_entries: u64::try_from(row.run_entries)?,
            attempt: row.attempt,
            broken_off: row.broken_off,
            lease_until: to_timestamp(row.lease_until_us)?,
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
