//! What happens to the workspaces of jobs, put on their timelines.

use async_trait::async_trait;
use tracing::warn;
use workspace::events::{EventKind, Observer, WorkspaceEvent};

use crate::body::{self, Body};
use crate::chain;
use crate::job::Status;
use crate::records::{Change, Held};
use crate::studio::Studio;

#[async_trait]
impl Observer for Studio {
    async fn event(&self, event: &WorkspaceEvent) {
        let (mut change, mut told) = translate(&event.kind);
        if change == Change::default() && told.is_none() {
            return;
        }
        let noted = async {
            let job = self.records().job_in(&event.workspace).await?.filter(|job| !job.deleted);
            let Some(job) = job else { return Ok(()) };
            if let EventKind::Paused { .. } = event.kind {
                told = Some(body::paused(!job.settled));
            }
            // A preview sleeps again after a while, whatever becomes of whoever woke it.
            if job.status == Status::Ready && change.sandbox_paused != Some(true) {
                let ends = change.sandbox_expires_at.flatten();
                if ends.is_some() || change.sandbox_id.is_some() {
                    change.sandbox_expires_at = Some(self.awake_until(ends));
                }
            }
            self.change(&job.id, Held::Anybody, change, told.into_iter().collect()).await.map(drop)
        };
        let noted: Result<(), crate::StudioError> = noted.await;
        if let Err(error) = noted {
            warn!(workspace = %event.workspace, error = %chain(&error), "an event is missing on a timeline");
        }
    }
}

/// What it changes in the job, and what is told.
fn translate(kind: &EventKind) -> (Change, Option<Body>) {
    let none = Change::default;
    // Whatever somebody was just given runs.
    let seated =
        |sandbox: &String| Change { sandbox_id: Some(Some(sandbox.clone())), sandbox_paused: Some(false), ..none() };
    match kind {
        EventKind::Created { sandbox, .. } => (seated(sandbox), None),
        EventKind::SnapshotSaved { key, files, bytes, .. } => (none(), Some(body::snapshot_saved(key, *files, *bytes))),
        EventKind::SnapshotFailed { reason } => {
            (none(), Some(body::notice(format!("No snapshot could be saved: {reason}"))))
        }
        EventKind::PhaseCommitted { commit, message } => {
            (none(), Some(body::phase_committed(message.as_deref(), commit)))
        }
        EventKind::DevServerReady { port, .. } => {
            (none(), Some(body::notice(format!("The application answers on port {port}."))))
        }
        EventKind::DevServerFailed { reason } => {
            (none(), Some(body::notice(format!("The application's server does not run: {reason}"))))
        }
        EventKind::Extended { until, .. } => {
            (Change { sandbox_expires_at: Some(Some(*until)), ..none() }, Some(body::extended(*until)))
        }
        EventKind::Rotated { from, sandbox, .. } => {
            (seated(sandbox), Some(body::rotated(from.as_deref(), sandbox, "its time was over")))
        }
        EventKind::Moved { from, to, sandbox, .. } => {
            (seated(sandbox), Some(body::moved(from.as_str(), to.as_str(), "the work goes on with another provider")))
        }
        EventKind::HandoverFailed { reason } => {
            (none(), Some(body::notice(format!("The sandbox was not replaced, and stays in use: {reason}"))))
        }
        EventKind::Restored { stamp, sandbox, .. } => (seated(sandbox), Some(body::restored(*stamp))),
        EventKind::Paused { .. } => (Change { sandbox_paused: Some(true), ..none() }, None),
        // That it answers again is told by whoever woke it.
        EventKind::Resumed { sandbox, until, .. } => {
            (Change { sandbox_expires_at: Some(Some(*until)), ..seated(sandbox) }, None)
        }
        EventKind::SandboxLost { .. } => (
            Change { sandbox_paused: Some(false), sandbox_expires_at: Some(None), ..none() },
            Some(body::notice("The sandbox is gone, and nobody here ended it.")),
        ),
        EventKind::Stopped { reason } => (none(), Some(body::notice(format!("The workspace is stopped: {reason}")))),
        EventKind::LimitWarning(warning) => {
            (none(), Some(body::limit_warning(&warning.limit.to_string(), warning.percent)))
        }
        EventKind::LimitReached { limit } => {
            (none(), Some(body::notice(format!("{limit} is used up: the work is saved and paused."))))
        }
        _ => (none(), None),
    }
}
