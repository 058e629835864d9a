//! The agent's part of a build: begun once, and gone on with by whichever worker has the job.

use std::sync::Arc;

use agent::approval::Desk;
use agent::records::RunState;
use agent::{Books, Feed, OnWorkspace, Parts, Phase, Plan, Run, RunError, RunId, Settings, StopReason, system_prompt};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;
use workspace::Workspace;

use super::copy::Copier;
use crate::chain;
use crate::error::StudioError;
use crate::records::JobRecord;
use crate::seat::{self, Answer};
use crate::studio::Studio;

/// How the agent's part ended.
pub(super) struct Done {
    pub(super) reason: StopReason,
    pub(super) message: String,
}

/// Why it has not ended.
pub(super) enum Broken {
    /// Nothing that waiting would change.
    Hopeless(String),
    /// Another worker may go on.
    Again(String),
}

impl From<StudioError> for Broken {
    fn from(error: StudioError) -> Self {
        Self::Again(chain(&error))
    }
}

/// Drives the run of a job to its end, and puts it on the timeline.
pub(super) async fn drive(
    studio: &Studio,
    job: &JobRecord,
    id: &RunId,
    workspace: &Workspace,
    cancel: CancellationToken,
) -> Result<Done, Broken> {
    let inner = &studio.inner;
    let chosen = inner.premises.model(Some(&job.model)).map_err(|error| Broken::Hopeless(chain(&error)))?;
    let books = Books {
        records: inner.book.clone(),
        run: id.clone(),
        project: workspace.project().to_string(),
        job: job.id.to_string(),
        model: chosen.model.name().to_owned(),
    };
    let (phases, finished) = unbounded_channel();
    let mut copier = Copier::new(studio, &job.id, job.attempt, books, job.run_entries, phases);
    // What a worker before this one had recorded and not told.
    copier.copy().await?;
    let feed = Feed::default();
    let parts = Parts {
        tools: inner.premises.tools(workspace, inner.settings.preview_port),
        model: chosen.model,
        workplace: Arc::new(OnWorkspace(workspace.clone())),
        records: Arc::clone(&inner.runs),
        approver: Arc::new(Desk::new(Arc::clone(&inner.runs))),
        feed: feed.clone(),
        cancel,
    };
    let watcher = feed.watch();
    let driven = async {
        let driven = begin_or_go_on(studio, job, id, parts).await;
        feed.close();
        driven
    };
    let followed = async {
        copier.follow(watcher).await;
        let copied = copier.copy().await;
        // No phase ends any more.
        drop(copier);
        copied
    };
    let (driven, copied, ()) = tokio::join!(driven, followed, photograph_phases(studio, job, workspace, finished));
    copied?;
    driven
}

/// Takes pictures of what is served at the end of each phase, while the next one goes on.
async fn photograph_phases(
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
            Ok(pass) => seat::ask(&studio.inner.http, pass.sandbox(), port).await != Answer::NotYet,
            Err(_) => false,
        };
        if served {
            let shown = JobRecord { preview_port: Some(port), ..job.clone() };
            studio.photograph(&shown, workspace, &format!("phase {phase}")).await;
        }
    }
}

async fn begin_or_go_on(studio: &Studio, job: &JobRecord, id: &RunId, parts: Parts) -> Result<Done, Broken> {
    let known = studio.inner.runs.run(id).await.map_err(|error| Broken::Again(chain(&error)))?;
    if let Some(record) = &known
        && record.head.state == RunState::Finished
        && let Some(reason) = record.head.stop_reason
    {
        // The worker before this one was killed just after the run's end.
        return Ok(Done { reason, message: format!("The run ended: {reason}.") });
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
        Ok(report) => Ok(Done { reason: report.stop_reason, message: report.message }),
        Err(RunError::Completed(_)) => Ok(Done { reason: StopReason::Completed, message: String::new() }),
        Err(error @ (RunError::NoPrice(_) | RunError::Policy(_))) => Err(Broken::Hopeless(chain(&error))),
        Err(error) => Err(Broken::Again(chain(&error))),
    }
}

fn plan(studio: &Studio, job: &JobRecord) -> Plan {
    let port = studio.inner.settings.preview_port;
    Plan {
        goal: job.goal.clone(),
        phases: job.spec.phases.iter().map(|goal| Phase { goal: goal.clone() }).collect(),
        model: job.model.clone(),
        workspace: Some(job.workspace.to_string()),
        system: system_prompt(&job.workspace_path, port),
        settings: Settings { max_cost_usd: job.spec.budget_usd, ..Settings::default() },
        policy: job.spec.policy.clone(),
        details: json!({ "preview_port": port, "job": job.id }),
    }
}
