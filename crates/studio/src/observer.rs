//! Translates events of the jobs' workspaces into changes of the job and timeline events.

use async_trait::async_trait;
use tracing::warn;
use workspace::events::{EventKind, Observer, WorkspaceEvent};

use crate::events::{self, EventBody, StudioEvent};
use crate::job::Status;
use crate::records::{Change, Precondition};
use crate::studio::Studio;
use text::error_chain;

#[async_trait]
impl Observer for Studio {
    async fn event(&self, event: &WorkspaceEvent) {
        let (mut change, mut event_body) = translate(&event.kind);
        if change == Change::default() && event_body.is_none() {
            return;
        }
        let noted = async {
            let job = self.records().job_in_workspace(&event.workspace).await?.filter(|job| !job.deleted);
            let Some(job) = job else { return Ok(()) };
            if let EventKind::Paused { .. } = event.kind {
                event_body = Some(StudioEvent::Paused { automatic: Some(!job.settled) }.into());
            }
            // A resumed preview is always paused again, even if the process that resumed it dies.
            if job.status == Status::Ready && change.sandbox_paused != Some(true) {
                let ends = change.sandbox_expires_at.flatten();
                if ends.is_some() || change.sandbox_id.is_some() {
                    change.sandbox_expires_at = Some(self.keep_running_until(ends));
                }
            }
            self.change(&job.id, Precondition::None, change, event_body.into_iter().collect()).await.map(drop)
        };
        let noted: Result<(), crate::StudioError> = noted.await;
        if let Err(error) = noted {
            warn!(workspace = %event.workspace, error = %error_chain(&error), "cannot append a workspace event to the timeline");
        }
    }
}

/// The change of the job and the timeline event that a workspace event causes.
fn translate(kind: &EventKind) -> (Change, Option<EventBody>) {
    let none = Change::default;
    // A sandbox that a workspace was just given runs.
    let running =
        |sandbox: &String| Change { sandbox_id: Some(Some(sandbox.clone())), sandbox_paused: Some(false), ..none() };
    match kind {
        EventKind::Created { sandbox, .. } => (running(sandbox), None),
        EventKind::CheckpointSaved { key, files, bytes, .. } => {
            let event = StudioEvent::SnapshotSaved { key: key.clone(), files: *files, bytes: *bytes };
            (none(), Some(event.into()))
        }
        EventKind::CheckpointFailed { reason } => {
            (none(), Some(events::notice(format!("No snapshot could be saved: {reason}"))))
        }
        EventKind::PhaseCommitted { commit, message } => {
            let event = StudioEvent::PhaseCommitted { message: message.clone(), commit: commit.clone() };
            (none(), Some(event.into()))
        }
        EventKind::DevServerReady { port, .. } => {
            (none(), Some(events::notice(format!("The application answers on port {port}."))))
        }
        EventKind::DevServerFailed { reason } => {
            (none(), Some(events::notice(format!("The application's server does not run: {reason}"))))
        }
        EventKind::Extended { until, .. } => {
            let change = Change { sandbox_expires_at: Some(Some(*until)), ..none() };
            (change, Some(StudioEvent::Extended { until: *until }.into()))
        }
        EventKind::Rotated { from, sandbox, .. } => {
            let reason = "its time was over".to_owned();
            (running(sandbox), Some(StudioEvent::Rotated { from: from.clone(), to: sandbox.clone(), reason }.into()))
        }
        EventKind::Moved { from, to, sandbox, .. } => {
            let event = StudioEvent::Moved {
                from_provider: from.to_string(),
                to_provider: to.to_string(),
                reason: "the work goes on with another provider".to_owned(),
            };
            (running(sandbox), Some(event.into()))
        }
        EventKind::HandoverFailed { reason } => {
            (none(), Some(events::notice(format!("The sandbox was not replaced, and stays in use: {reason}"))))
        }
        EventKind::Restored { stamp, sandbox, .. } => {
            let event = StudioEvent::Restored { stamp: *stamp, saved_at: stamp.time() };
            (running(sandbox), Some(event.into()))
        }
        EventKind::Paused { .. } => (Change { sandbox_paused: Some(true), ..none() }, None),
        // The code that resumes the preview publishes `resumed` once the application responds.
        EventKind::Resumed { sandbox, until, .. } => {
            (Change { sandbox_expires_at: Some(Some(*until)), ..running(sandbox) }, None)
        }
        EventKind::SandboxLost { .. } => (
            Change { sandbox_paused: Some(false), sandbox_expires_at: Some(None), ..none() },
            Some(events::notice("The sandbox is gone, and Sandbar did not end it.")),
        ),
        EventKind::Stopped { reason } => (none(), Some(events::notice(format!("The workspace is stopped: {reason}")))),
        EventKind::LimitWarning(warning) => {
            let event = StudioEvent::LimitWarning { what: warning.limit.to_string(), percent: warning.percent };
            (none(), Some(event.into()))
        }
        EventKind::LimitReached { limit } => {
            (none(), Some(events::notice(format!("{limit} is used up: the work is saved and paused."))))
        }
        _ => (none(), None),
    }
}
