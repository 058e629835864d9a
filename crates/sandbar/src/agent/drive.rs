//! Drives a run from this program: prints its events, stops on signals and saves the files.

use super::approve::TerminalApprover;
use super::open_records;
use super::view::View;
use crate::mcp::SharedMcpServer;
use crate::workspace::app::{DueScreenshots, EndAction, WorkspaceApp};
use agent::approval::{ApprovalQueue, Approver, DenyAll};
use agent::model::Model;
use agent::{
    Checkpointer, Feed, Parts, Plan, Report, Run, RunError, RunId, RunRecords, StopReason, UsageRecorder,
    WorkspaceCheckpointer,
};
use anyhow::Context as _;
use cli::interrupt::{Stop, Stops};
use sdk::Secret;
use std::io::{IsTerminal as _, stdin};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tools::ToolDispatcher;
use workspace::Workspace;
use workspace::records::DatabaseRecords;

/// Whether the run is new or continues a recorded one.
pub(super) enum RunStart {
    New(Box<Plan>),
    Resume,
}

pub(super) struct Drive {
    pub(super) app: Arc<WorkspaceApp>,
    pub(super) url: Secret,
    pub(super) workspace: Workspace,
    pub(super) model: Arc<dyn Model>,
    pub(super) preview_port: u16,
    pub(super) json: bool,
    /// The caller asked for JSON events, so that a program can answer questions about tool calls.
    pub(super) has_event_reader: bool,
    /// Address of the server for MCP clients that join the run.
    pub(super) mcp: Option<SocketAddr>,
    /// What happens to the workspace when the run has ended.
    pub(super) end_action: EndAction,
}

impl Drive {
    /// Runs to the end and closes the app, also after an error, which releases the lease of the
    /// workspace.
    pub(super) async fn run(self, id: RunId, start: RunStart) -> anyhow::Result<ExitCode> {
        let app = Arc::clone(&self.app);
        let ran = self.run_to_end(id, start).await;
        let due = ran.as_ref().map_or(DueScreenshots::Skip, |(_, due)| *due);
        app.close(due).await;
        ran.map(|(exit, _)| exit)
    }

    async fn run_to_end(self, id: RunId, start: RunStart) -> anyhow::Result<(ExitCode, DueScreenshots)> {
        let Self { app, url, workspace, model, preview_port, json, has_event_reader, mcp, end_action } = self;
        let mut stops = Stops::install()?;
        let records: Arc<dyn RunRecords> = Arc::new(open_records(&url).await?);
        let checkpointer = Arc::new(WorkspaceCheckpointer(workspace.clone()));
        let tools: Arc<dyn ToolDispatcher> = Arc::new(app.tools(&workspace, Some(preview_port)));
        let approver: Arc<dyn Approver> = if has_event_reader {
            Arc::new(ApprovalQueue::new(Arc::clone(&records)))
        } else if !json && stdin().is_terminal() {
            Arc::new(TerminalApprover)
        } else {
            Arc::new(DenyAll)
        };
        let (feed, cancel) = (Feed::default(), CancellationToken::new());
        let parts = Parts {
            model: Arc::clone(&model),
            tools,
            checkpointer: Arc::clone(&checkpointer) as Arc<dyn Checkpointer>,
            records,
            approver,
            feed: feed.clone(),
            cancel: cancel.clone(),
        };
        let usage = UsageRecorder {
            records: DatabaseRecords::open(&url).await.context("the usage cannot be noted")?,
            run: id.clone(),
            job: id.to_string(),
            project: workspace.project().to_string(),
            model: model.name().to_owned(),
        };
        let mcp_server = match mcp {
            Some(address) => Some(SharedMcpServer::start(address, &app, &workspace, preview_port).await?),
            None => None,
        };
        let shown = tokio::spawn(show(feed.watch(), View::new(json), usage, cancel.clone()));
        let driven = tokio::spawn(drive(parts, id, start));
        let (report, stopped) = wait(driven, &mut stops, &cancel).await?;
        feed.close();
        let shown = shown.await.context("the view failed");
        if let Some(mcp_server) = mcp_server {
            mcp_server.close().await;
        }
        if !report.as_ref().is_ok_and(|report| report.stop_reason.is_budget()) {
            // A run that stops at a limit saves by itself.
            save(&checkpointer, &mut stops).await;
        }
        let due = if stopped.is_some() { DueScreenshots::Skip } else { DueScreenshots::Take };
        let finish = async {
            app.finish_screenshots(due).await;
            app.finish(&workspace, Some(preview_port), end_action).await;
        };
        tokio::select! {
            () = finish => {}
            stop = stops.next() => exit_now(stop),
        }
        shown??;
        let exit = match (report?.stop_reason, stopped) {
            (StopReason::Completed, _) => ExitCode::SUCCESS,
            (_, Some(stop)) => stop.exit(),
            _ => ExitCode::FAILURE,
        };
        Ok((exit, due))
    }
}

async fn drive(parts: Parts, id: RunId, start: RunStart) -> Result<Report, RunError> {
    let run = match start {
        RunStart::New(plan) => Run::begin(parts, id, *plan).await?,
        RunStart::Resume => Run::resume(parts, id).await?,
    };
    run.drive().await
}

async fn show(
    mut watcher: agent::Watcher,
    mut view: View,
    usage: UsageRecorder,
    cancel: CancellationToken,
) -> anyhow::Result<()> {
    while let Some(happened) = watcher.next().await {
        if let Err(error) = view.event(&happened) {
            // The reader of stdout is gone, so the run is cancelled: no user watches it any more.
            cancel.cancel();
            return Err(error.into());
        }
        usage.record(&happened).await;
    }
    Ok(())
}

type Driven = tokio::task::JoinHandle<Result<Report, RunError>>;

/// Waits for the end of the run. The first signal cancels the run, the second exits immediately.
async fn wait(
    mut driven: Driven,
    stops: &mut Stops,
    cancel: &CancellationToken,
) -> anyhow::Result<(Result<Report, RunError>, Option<Stop>)> {
    let mut stopped = None;
    loop {
        tokio::select! {
            ended = &mut driven => return Ok((ended.context("the loop failed")?, stopped)),
            stop = stops.next() => {
                if stopped.is_some() {
                    exit_now(stop);
                }
                eprintln!("sandbar: stopping; once more to stop at once");
                cancel.cancel();
                stopped = Some(stop);
            }
        }
    }
}

async fn save(checkpointer: &WorkspaceCheckpointer, stops: &mut Stops) {
    tokio::select! {
        saved = checkpointer.save() => if let Err(error) = saved {
            eprintln!("sandbar: the files were not saved and are only in the sandbox: {:#}", anyhow::Error::new(error));
        },
        stop = stops.next() => exit_now(stop),
    }
}

/// Exits without cleanup. The run records each event before it acts, so that it can be resumed.
fn exit_now(stop: Stop) -> ! {
    std::process::exit(i32::from(stop.code()))
}
