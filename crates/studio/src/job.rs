//! A build and its life cycle, which is one pure function, [`next`].
//!
//! ```text
//! queued ── provisioning ── building ── ready
//!    └────────────┴────────────┴─────── failed | cancelled
//! ```
//!
//! A paused sandbox is a flag of the job and not a status: a ready build stays ready.

use std::fmt;

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

/// An event in the life cycle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A worker claimed the job, also after another worker died.
    Claimed,
    /// The workspace exists, and the run starts or continues.
    Provisioned,
    /// The run and the preview are finished.
    Built,
    Failed,
    Cancelled,
}

/// A job with this status cannot take this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {status} cannot take the step {step:?}")]
pub struct Refused {
    pub status: Status,
    pub step: Step,
}

/// The status after a step. A final status never changes.
///
/// # Errors
/// [`Refused`] when a job with this status cannot take the step.
pub fn next(status: Status, step: Step) -> Result<Status, Refused> {
    match (status, step) {
        (Status::Queued | Status::Provisioning, Step::Claimed) => Ok(Status::Provisioning),
        // Another worker continues the same run.
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
