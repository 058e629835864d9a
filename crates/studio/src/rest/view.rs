//! Responses that only the REST API has. The others are the studio's own types.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Job, JobId, ScreenshotView, SnapshotView, Status};

/// A build that was queued or changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StartedBuild {
    job_id: JobId,
    status: Status,
}

impl From<Job> for StartedBuild {
    fn from(job: Job) -> Self {
        Self { job_id: job.id, status: job.status }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GenerationStatus {
    job_id: JobId,
    status: Status,
    /// The current stage, for people.
    stage_label: String,
    /// Null while the sandbox is paused.
    preview_url: Option<String>,
    /// Increases with every build of the project.
    build_version: u32,
    error_message: Option<String>,
    /// The name of the build in the server's logs.
    debug_id: String,
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    sandbox_expires_at: Option<Timestamp>,
    sandbox_paused: bool,
}

impl From<Job> for GenerationStatus {
    fn from(job: Job) -> Self {
        Self {
            job_id: job.id,
            status: job.status,
            stage_label: job.stage_label,
            preview_url: job.preview_url,
            build_version: job.build_version,
            error_message: job.error_message,
            debug_id: job.debug_id,
            sandbox_expires_at: job.sandbox_expires_at,
            sandbox_paused: job.sandbox_paused,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Jobs {
    /// The newest first.
    pub(super) jobs: Vec<Job>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Paused {
    pub(super) job_id: JobId,
    pub(super) paused: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Screenshots {
    /// The newest first.
    pub(super) screenshots: Vec<ScreenshotView>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Snapshots {
    /// The newest first.
    pub(super) snapshots: Vec<SnapshotView>,
}

/// An approval request that was answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApprovalAnswered {
    pub(super) id: String,
    pub(super) allowed: bool,
}
