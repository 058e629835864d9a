//! A build and its life cycle, which is one pure function, [`next`].
//!
//! ```text
//! queued ── provisioning ── building ── ready
//!    └────────────┴────────────┴─────── failed | cancelled
//! ```
//!
//! A paused sandbox is a flag of the job and not a status: a ready build stays ready.

use std::fmt;

use checkpoint::Stamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The status of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "JobStatus")]
pub enum Status {
    // Comments and not docs, so that the OpenAPI document lists the words alone.
    Queued,
    // The worker creates the workspace.
    Provisioning,
    // The agent runs.
    Building,
    Ready,
    Failed,
    Cancelled,
}

/// What a worker does with a job that it claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Builds it, or completes what is left to do after its end.
    Build,
    /// Restores its files from this snapshot.
    Restore(Stamp),
    /// Removes what a deleted job left.
    Remove,
}

/// A step in the life cycle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStep {
    /// A worker claims the job, also after another worker died.
    Claim,
    /// The workspace exists, and the run starts or continues.
    StartRun,
    /// The run and the preview are finished.
    Finish,
    Fail,
    Cancel,
}

/// A job with this status cannot take this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {status} cannot take the step {step:?}")]
pub struct StepRefused {
    pub status: Status,
    pub step: JobStep,
}

/// The status after a step. A final status never changes.
///
/// # Errors
/// [`StepRefused`] when a job with this status cannot take the step.
pub fn next(status: Status, step: JobStep) -> Result<Status, StepRefused> {
    match (status, step) {
        (Status::Queued | Status::Provisioning, JobStep::Claim) => Ok(Status::Provisioning),
        // Another worker continues the same run.
        (Status::Building, JobStep::Claim) | (Status::Provisioning | Status::Building, JobStep::StartRun) => {
            Ok(Status::Building)
        }
        (Status::Building, JobStep::Finish) => Ok(Status::Ready),
        (Status::Queued | Status::Provisioning | Status::Building, JobStep::Fail) => Ok(Status::Failed),
        (Status::Queued | Status::Provisioning | Status::Building, JobStep::Cancel) => Ok(Status::Cancelled),
        (status, step) => Err(StepRefused { status, step }),
    }
}

impl Status {
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Provisioning, Self::Building, Self::Ready, Self::Failed, Self::Cancelled];

    /// The word for it in the records and in REST bodies.
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

    /// Whether the status never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Ready | Self::Failed | Self::Cancelled)
    }

    /// The default stage label.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_status_never_changes() {
        use Status::{Building, Cancelled, Failed, Provisioning, Queued, Ready};
        let table = [
            (Queued, JobStep::Claim, Some(Provisioning)),
            (Queued, JobStep::StartRun, None),
            (Queued, JobStep::Finish, None),
            (Queued, JobStep::Fail, Some(Failed)),
            (Queued, JobStep::Cancel, Some(Cancelled)),
            (Provisioning, JobStep::Claim, Some(Provisioning)),
            (Provisioning, JobStep::StartRun, Some(Building)),
            (Provisioning, JobStep::Finish, None),
            (Provisioning, JobStep::Fail, Some(Failed)),
            (Provisioning, JobStep::Cancel, Some(Cancelled)),
            (Building, JobStep::Claim, Some(Building)),
            (Building, JobStep::StartRun, Some(Building)),
            (Building, JobStep::Finish, Some(Ready)),
            (Building, JobStep::Fail, Some(Failed)),
            (Building, JobStep::Cancel, Some(Cancelled)),
        ];
        for (status, step, expected) in table {
            assert_eq!(next(status, step).ok(), expected, "{status} {step:?}");
        }
        for status in Status::ALL.into_iter().filter(|status| status.is_final()) {
            for step in [JobStep::Claim, JobStep::StartRun, JobStep::Finish, JobStep::Fail, JobStep::Cancel] {
                assert_eq!(next(status, step), Err(StepRefused { status, step }));
            }
        }
    }
}
