//! The agent's part of a build: started once, and continued by each worker that has the job.

use std::sync::Arc;

use agent::approval::ApprovalQueue;
use agent::records::RunState;
use agent::{
    Feed, Parts, Plan, PlanPhase, Run, RunError, RunId, Settings, StopReason, UsageRecorder, WorkspaceCheckpointer,
    system_prompt,
};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;
use workspace::Workspace;

use super::copy::JournalCopier;
use crate::error::StudioError;
use crate::probe::{self, AppResponse};
use crate::records::JobRecord;
use crate::studio::Studio;
use text::error_chain;

/// How the run ended.
pub(super) struct RunOutcome {
    pub(super) reason: StopReason,
    pub(super) message: String,
}

/// Why the run has not ended.
pub(super) enum DriveError {
    /// A retry would fail the same way.
    Permanent(String),
    /// Another worker may continue the run.
    Retry(String),
}

impl From<StudioError> for DriveError {
    fn from(error: StudioError) -> Self {
        Self::Retry(error_chain(&error))
    }
}

/// Drives the run of a job to its end, and copies it to the timeline.
pub(super) async fn drive(
    studio: &Studio,
    job: &JobRecord,
    id: &RunId,
    workspace: &Workspace,
    cancel: CancellationToken,
) -> Result<RunOutcome, DriveError> {
    let inner = &studio.inner;
    let chosen = inner.host.model(Some(&job.spec.model)).map_err(|error| DriveError::Permanent(error_chain(&error)))?;
    let books = UsageRecorder {
        records: inner.usage.clone(),
        run: id.clone(),
        project: workspace.project().to_string(),
        job: job.id.to_string(),
        model: chosen.model.name().to_owned(),
    };
    let (phases, finished) = unbounded_channel();
    let mut copier = JournalCopier::new(studio, &job.id, job.attempt, books, job.run_entries, phases);
    // Copies what a previous worker recorded and did not copy.
    copier.copy().await?;
    let feed = Feed::default();
    let parts = Parts {
        tools: inner.host.tools(workspace, inner.settings.preview_port),
        model: chosen.model,
        checkpointer: Arc::new(WorkspaceCheckpointer(workspace.clone())),
        records: Arc::clone(&inner.runs),
        approver: Arc::new(ApprovalQueue::new(Arc::clone(&inner.runs))),
        feed: feed.clone(),
        cancel,
    };
    let watcher = feed.watch();
    let driven = async {
        let driven = start_or_resume(studio, job, id, parts).await;
        feed.close();
        driven
    };
    let followed = async {
        copier.follow(watcher).await;
        let copied = copier.copy().await;
        // Closes the channel: no phase ends after this.
        drop(copier);
        copied
    };
    let (driven, copied, ()) = tokio::join!(driven, followed, take_phase_screenshots(studio, job, workspace, finished));
    copied?;
    driven
}

/// Takes screenshots of the application at the end of each phase, while the next phase runs.
async fn take_phase_screenshots(
    studio: &Studio,
    job: &JobRecord,
    workspace: &Workspace,
    mut finished: UnboundedReceiver<u64>,
) {
    while let Some(phase) = finished.recv().await {
        let declared = match studio.workspaces().show(&job.workspace).await {
            Ok(view) => view.dev_server.map(|server| server.port),
            Err(_) => None,
        };
        let port = declared.unwrap_or(studio.inner.settings.preview_port);
        let served = match workspace.enter().await {
            Ok(pass) => probe::ask_application(&studio.inner.http, pass.sandbox(), port).await != AppResponse::NotReady,
            Err(_) => false,
        };
        if served {
            let shown = JobRecord { preview_port: Some(port), ..job.clone() };
            studio.take_screenshots(&shown, workspace, &format!("phase {phase}")).await;
        }
    }
}

async fn start_or_resume(studio: &Studio, job: &JobRecord, id: &RunId, parts: Parts) -> Result<RunOutcome, DriveError> {
    let known = studio.inner.runs.run(id).await.map_err(|error| DriveError::Retry(error_chain(&error)))?;
    if let Some(record) = &known
        && record.head.state == RunState::Finished
        && let Some(reason) = record.head.stop_reason
    {
        // The previous worker was killed right after the run's end.
        return Ok(RunOutcome { reason, message: format!("The run ended: {reason}.") });
    }
    let run = match known {
        Some(_) => Run::resume(parts, id.clone()).await,
        None => Run::begin(parts, id.clone(), plan(studio, job)).await,
    };
    let driven = match run {
        Ok(run) => run.drive().await,
        Err(error) => Err(error),
    };
    match driven {
        Ok(report) => Ok(RunOutcome { reason: report.stop_reason, message: report.message }),
        Err(RunError::Completed(_)) => Ok(RunOutcome { reason: StopReason::Completed, message: String::new() }),
        Err(error @ (RunError::NoPrice(_) | RunError::Policy(_))) => Err(DriveError::Permanent(error_chain(&error))),
        Err(error) => Err(DriveError::Retry(error_chain(&error))),
    }
}

fn plan(studio: &Studio, job: &JobRecord) -> Plan {
    let port = studio.inner.settings.preview_port;
    Plan {
        goal: job.spec.goal.clone(),
        phases: job.spec.phases.iter().map(|goal| PlanPhase { goal: goal.clone() }).collect(),
        model: job.spec.model.clone(),
        workspace: Some(job.workspace.to_string()),
        system: system_prompt(&job.workspace_path, port),
        settings: Settings { max_cost_usd: job.spec.budget_usd, ..Settings::default() },
        policy: job.spec.policy.clone(),
        details: json!({ "preview_port": port, "job": job.id }),
    }
}
