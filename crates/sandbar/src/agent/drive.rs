//! Drives a run from this program: shows it, hears Ctrl-C, and leaves everything saved.

use super::approve::Terminal;
use super::open_records;
use super::view::View;
use crate::mcp::Beside;
use crate::sandbox::interrupt::{Stop, Stops};
use crate::workspace::house::{Due, Ending, House};
use agent::approval::{Approver, Desk, Nobody};
use agent::model::Model;
use agent::{Books, Feed, OnWorkspace, Parts, Plan, Report, Run, RunError, RunId, RunRecords, StopReason, Workplace};
use anyhow::Context as _;
use sdk::Secret;
use std::io::{IsTerminal as _, stdin};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tools::ToolDispatcher;
use workspace::Workspace;
use workspace::records::DatabaseRecords;

/// How a run begins here.
pub(super) enum Begin {
    New(Box<Plan>),
    Again,
}

pub(super) struct Drive {
    pub(super) house: House,
    pub(super) url: Secret,
    pub(super) workspace: Workspace,
    pub(super) model: Arc<dyn Model>,
    pub(super) preview_port: u16,
    pub(super) json: bool,
    /// Whether a program was promised the events, so that it can answer what is asked.
    pub(super) heard: bool,
    /// Where MCP clients may join.
    pub(super) mcp: Option<SocketAddr>,
    /// What becomes of the workspace.
    pub(super) ending: Ending,
}

impl Drive {
    pub(super) async fn run(self, id: RunId, begin: Begin) -> anyhow::Result<ExitCode> {
        let Self { house, url, workspace, model, preview_port, json, heard, mcp, ending } = self;
        let house = Arc::new(house);
        let mut stops = Stops::install()?;
        let records: Arc<dyn RunRecords> = Arc::new(open_records(&url).await?);
        let place = Arc::new(OnWorkspace(workspace.clone()));
        let tools: Arc<dyn ToolDispatcher> = Arc::new(house.tools(&workspace, Some(preview_port)));
        let approver: Arc<dyn Approver> = if heard {
            Arc::new(Desk::new(Arc::clone(&records)))
        } else if !json && stdin().is_terminal() {
            Arc::new(Terminal)
        } else {
            Arc::new(Nobody)
        };
        let (feed, cancel) = (Feed::default(), CancellationToken::new());
        let parts = Parts {
            model: Arc::clone(&model),
            tools,
            workplace: Arc::clone(&place) as Arc<dyn Workplace>,
            records,
            approver,
            feed: feed.clone(),
            cancel: cancel.clone(),
        };
        let books = Books {
            records: DatabaseRecords::open(&url).await.context("the usage cannot be noted")?,
            run: id.clone(),
            job: id.to_string(),
            project: workspace.project().to_string(),
            model: model.name().to_owned(),
        };
        let beside = match mcp {
            Some(address) => Some(Beside::begin(address, &house, &workspace, preview_port).await?),
            None => None,
        };
        let shown = tokio::spawn(show(feed.watch(), View::new(json), books, cancel.clone()));
        let driven = tokio::spawn(drive(parts, id, begin));
        let (report, stopped) = wait(driven, &mut stops, &cancel).await?;
        feed.close();
        shown.await.context("the view failed")??;
        let report = report?;
        if let Some(beside) = beside {
            beside.close().await;
        }
        if !report.stop_reason.is_budget() {
            // At a limit the run has done so itself.
            save(&place, &mut stops).await;
        }
        let due = if stopped.is_some() { Due::LeftOut } else { Due::Taken };
        let finish = async {
            house.finish_screenshots(due).await;
            house.finish(&workspace, Some(preview_port), ending).await;
        };
        tokio::select! {
            () = finish => {}
            stop = stops.next() => at_once(stop),
        }
        house.close(due).await;
        Ok(match (report.stop_reason, stopped) {
            (StopReason::Completed, _) => ExitCode::SUCCESS,
            (_, Some(stop)) => stop.exit(),
            _ => ExitCode::FAILURE,
        })
    }
}

async fn drive(parts: Parts, id: RunId, begin: Begin) -> Result<Report, RunError> {
    let run = match begin {
        Begin::New(plan) => Run::begin(parts, id, *plan).await?,
        Begin::Again => Run::resume(parts, id).await?,
    };
    run.drive().await
}

async fn show(
    mut watcher: agent::Watcher,
    mut view: View,
    books: Books,
    cancel: CancellationToken,
) -> anyhow::Result<()> {
    while let Some(happened) = watcher.next().await {
        if let Err(error) = view.event(&happened) {
            // Nobody reads any more: nobody knows what goes on.
            cancel.cancel();
            return Err(error.into());
        }
        books.note(&happened).await;
    }
    Ok(())
}

type Driven = tokio::task::JoinHandle<Result<Report, RunError>>;

/// Waits for the end. The first signal asks for it, the second does not wait.
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
                    at_once(stop);
                }
                eprintln!("sandbar: stopping; once more to stop at once");
                cancel.cancel();
                stopped = Some(stop);
            }
        }
    }
}

async fn save(place: &OnWorkspace, stops: &mut Stops) {
    tokio::select! {
        saved = place.save() => if let Err(error) = saved {
            eprintln!("sandbar: the files were not saved and are only in the sandbox: {:#}", anyhow::Error::new(error));
        },
        stop = stops.next() => at_once(stop),
    }
}

/// Everything that matters is recorded before it is done, so nothing is lost that could be kept.
fn at_once(stop: Stop) -> ! {
    std::process::exit(i32::from(stop.code()))
}
