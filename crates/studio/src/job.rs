//! A build: what was asked for, and how far it is. The life of a job is one pure function, [`next`].
//!
//! ```text
//! queued ── provisioning ── building ── ready
//!    └────────────┴────────────┴─────── failed | cancelled
//! ```
//!
//! That its sandbox sleeps is no state of a job but a flag: a build that is ready stays ready.

use std::fmt;

use agent::approval::Policy;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{JobId, ProjectId, ScreenshotId};

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Queued,
    /// Its workspace is being made.
    Provisioning,
    /// The model works.
    Building,
    Ready,
    Failed,
    Cancelled,
}

/// What moves a job on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A worker has it; also after another worker's death.
    Claimed,
    /// There is a workspace, and the run begins or goes on.
    Provisioned,
    /// All is done.
    Built,
    Failed,
    Cancelled,
}

/// A job is not where that could happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {status} cannot take the step {step:?}")]
pub struct Refused {
    pub status: Status,
    pub step: Step,
}

/// Where a step leads. What has ended stays as it is.
///
/// # Errors
/// [`Refused`]: such a job cannot take that step.
pub fn next(status: Status, step: Step) -> Result<Status, Refused> {
    match (status, step) {
        (Status::Queued | Status::Provisioning, Step::Claimed) => Ok(Status::Provisioning),
        // Another worker goes on with the same run.
        (Status::Building, Step::Claimed) | (Status::Provisioning | Status::Building, Step::Provisioned) => {
            Ok(Status::Building)
        }
        (Status::Building, Step::Built) => Ok(Status::Ready),
        (Status::Queued | Status::Provisioning | Status::Building, Step::Failed) => Ok(Status::Failed),
        (Status::Queued | Status::Provisioning | Status::Building, Step::Cancelled) => Ok(Status::Cancelled),
        (status, step) => Err(Refused { status, step }),
    }
}

impl Status {
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Provisioning, Self::Building, Self::Ready, Self::Failed, Self::Cancelled];

    /// The word that stands for it in records and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Provisioning => "provisioning",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Nothing more happens to the job by itself.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Ready | Self::Failed | Self::Cancelled)
    }

    /// What people read when nobody said anything better.
    pub fn label(self) -> &'static str {
        match self {
            Self::Queued => "Waiting for a builder",
            Self::Provisioning => "Preparing the workspace",
            Self::Building => "Building",
            Self::Ready => "Ready",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What somebody wants built.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBuild {
    pub project: ProjectRef,
    pub goal: String,
    /// Worked off one after the other, each committed and saved by itself; none: the goal alone.
    pub phases: Vec<String>,
    /// The URL of a git repository to begin with.
    pub repo: Option<String>,
    pub branch: Option<String>,
    /// As `agent::model::Choice` reads it; none: the default.
    pub model: Option<String>,
    pub template: Option<String>,
    /// What the model may cost.
    pub budget_usd: Option<f64>,
    /// Which calls are asked about or refused.
    pub policy: Policy,
}

/// Which project a build is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProjectRef {
    Id(ProjectId),
    /// The user's project of that name, made if there is none.
    Name(String),
    /// A project that this build makes: a name that a project with builds has is refused.
    New(String),
}

/// A job as its owner sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub id: JobId,
    pub project: ProjectId,
    pub project_name: String,
    pub goal: String,
    pub model: String,
    pub status: Status,
    /// What goes on, for people.
    pub stage_label: String,
    pub created_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// Counts up per project.
    pub build_version: u32,
    /// Where the application can be looked at; none while it sleeps, or when there is nothing to look at.
    pub preview_url: Option<String>,
    pub sandbox_paused: bool,
    pub sandbox_id: Option<String>,
    /// The end of its sandbox, as far as it is known.
    pub sandbox_expires_at: Option<Timestamp>,
    /// What the model and the sandboxes have cost; of a job that was just acted on, the model alone.
    pub cost_usd: f64,
    /// The newest desktop picture; none while it sleeps.
    pub screenshot: Option<ScreenshotId>,
    /// What went wrong, and what to do next.
    pub error_message: Option<String>,
    /// What the logs call it.
    pub debug_id: String,
    pub rebuilt_from: Option<JobId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_forward_only_and_what_has_ended_stays() {
        use Status::{Building, Cancelled, Failed, Provisioning, Queued, Ready};
        let table = [
            (Queued, Step::Claimed, Some(Provisioning)),
            (Queued, Step::Provisioned, None),
            (Queued, Step::Built, None),
            (Queued, Step::Failed, Some(Failed)),
            (Queued, Step::Cancelled, Some(Cancelled)),
            (Provisioning, Step::Claimed, Some(Provisioning)),
            (Provisioning, Step::Provisioned, Some(Building)),
            (Provisioning, Step::Built, None),
            (Provisioning, Step::Failed, Some(Failed)),
            (Provisioning, Step::Cancelled, Some(Cancelled)),
            (Building, Step::Claimed, Some(Building)),
            (Building, Step::Provisioned, Some(Building)),
            (Building, Step::Built, Some(Ready)),
            (Building, Step::Failed, Some(Failed)),
            (Building, Step::Cancelled, Some(Cancelled)),
        ];
        for (status, step, expected) in table {
            assert_eq!(next(status, step).ok(), expected, "{status} {step:?}");
        }
        for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
            for step in [Step::Claimed, Step::Provisioned, Step::Built, Step::Failed, Step::Cancelled] {
                assert_eq!(next(status, step), Err(Refused { status, step }));
            }
        }
    }
}
