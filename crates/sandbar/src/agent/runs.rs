//! `sandbar runs`: lists, shows, resumes and cancels runs, and answers their questions.

use super::drive::{Drive, RunStart};
use super::run::Limits;
use super::view::View;
use super::{open_records, records_url};
use crate::workspace::app::{EndAction, WorkspaceApp, WorkspaceLocation};
use crate::{logging, runtime};
use agent::approval::{self, ApprovalAnswer, ApprovalQueue};
use agent::model::{ModelChoice, ModelPrice};
use agent::records::{RunRecord, RunState};
use agent::{RunId, RunRecords, StopReason};
use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum};
use cli::show::{Colour, Show, local_time, printable};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::io::{IsTerminal as _, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use workspace::WorkspaceName;
use workspace::ledger::Usd;

/// A process that drives a run updates its record every second. A record that is older than this
/// belongs to a process that has died.
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Until a cancelled run has to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(15);

/// List runs of the agent, look at them, go on with them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar runs list
  sandbar runs show run_0123456789abcdef            what happened, from the beginning
  sandbar runs resume run_0123456789abcdef          after a crash, Ctrl-C or a limit
  sandbar runs resume run_0123456789abcdef --budget-usd 5
  sandbar runs cancel run_0123456789abcdef
  sandbar runs answer run_0123456789abcdef CALL allow                     CALL is the id of the event approval_asked
  sandbar runs answer run_0123456789abcdef CALL deny --because 'not on a Friday'")]
pub(crate) struct Runs {
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    location: WorkspaceLocation,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List runs, the newest first
    #[command(visible_alias = "ls")]
    List,
    /// Show what happened in a run
    Show { run: RunId },
    /// Go on with a run where it was left, with the model it had
    Resume(Box<Resume>),
    /// Stop a run, wherever it is driven
    Cancel { run: RunId },
    /// Answer the question whether a call may be made; the first answer counts
    Answer(Reply),
}

#[derive(Args)]
struct Reply {
    run: RunId,
    /// The call's id, as the event `approval_asked` names it
    call: String,
    answer: Word,
    /// The reason that the model gets
    #[arg(long, value_name = "TEXT")]
    because: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Word {
    Allow,
    Deny,
}

#[derive(Args)]
struct Resume {
    run: RunId,
    #[command(flatten)]
    limits: Limits,
    /// Let MCP clients work in the workspace meanwhile; prints the URL and the token
    #[arg(long, value_name = "ADDR")]
    mcp: Option<SocketAddr>,
    /// Leave the workspace running at the end; it is paused otherwise
    #[arg(long)]
    keep_running: bool,
    /// Print one JSON object an event, also on a terminal
    #[arg(long)]
    json_events: bool,
}

impl Runs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        runtime::block_on(self.execute())
    }

    async fn execute(self) -> anyhow::Result<ExitCode> {
        let show = Show::new(self.json);
        match self.command {
            Command::List => list(&self.location, show).await?,
            Command::Show { run } => show_one(&self.location, show, &run).await?,
            Command::Cancel { run } => cancel(&self.location, show, &run).await?,
            Command::Answer(reply) => reply.send(&self.location, show).await?,
            Command::Resume(resume) => return resume.run(&self.location, self.json).await,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn not_found(id: &RunId) -> anyhow::Error {
    anyhow!("there is no run {id}; `sandbar runs list` shows those there are")
}

/// `running`, `interrupted`, or the reason why the run ended.
fn state(run: &RunRecord) -> &'static str {
    let silent = Duration::try_from(Timestamp::now().duration_since(run.head.seen_at)).unwrap_or_default();
    match (run.head.state, run.head.stop_reason) {
        (RunState::Finished, Some(reason)) => reason.as_str(),
        (RunState::Finished, None) => "finished",
        (RunState::Running, _) if silent > LIVENESS_TIMEOUT => "interrupted",
        (RunState::Running, _) => "running",
    }
}

fn to_json(run: &RunRecord) -> Value {
    json!({
        "run_id": run.id,
        "state": match run.head.state { RunState::Finished => "finished", RunState::Running => state(run) },
        "stop_reason": run.head.stop_reason,
        "goal": run.plan.goal,
        "model": run.plan.model,
        "workspace": run.plan.workspace,
        "turns": run.head.turns,
        "usage": run.head.usage,
        "cost_usd": Usd::from_nanos(run.head.cost_nanos).dollars(),
        "created_at": run.created_at,
        "seen_at": run.head.seen_at,
    })
}

fn paint_state(show: Show, run: &RunRecord) -> String {
    let state = state(run);
    let colour = match state {
        "completed" => Colour::Green,
        "running" => Colour::Blue,
        _ => Colour::Yellow,
    };
    show.paint(colour, state)
}

async fn list(location: &WorkspaceLocation, show: Show) -> anyhow::Result<()> {
    let runs = open_records(&records_url(location)?).await?.runs().await?;
    if show.json {
        return Ok(show.object(&runs.iter().map(to_json).collect::<Vec<_>>())?);
    }
    if runs.is_empty() {
        eprintln!("no run; `sandbar run --goal …` begins one");
        return Ok(());
    }
    let row = |run: &RunRecord| {
        vec![
            run.id.to_string(),
            paint_state(show, run),
            run.head.turns.to_string(),
            Usd::from_nanos(run.head.cost_nanos).to_string(),
            local_time(&run.created_at.to_string()),
            run.plan.workspace.clone().unwrap_or_else(|| "-".to_owned()),
            printable(&run.plan.goal.chars().take(50).collect::<String>()),
        ]
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    Ok(show.table(&["RUN", "STATE", "TURNS", "COST", "BEGUN", "WORKSPACE", "GOAL"], &rows)?)
}

async fn show_one(location: &WorkspaceLocation, show: Show, id: &RunId) -> anyhow::Result<()> {
    let records = open_records(&records_url(location)?).await?;
    let run = records.run(id).await?.ok_or_else(|| not_found(id))?;
    let entries = records.entries(id, 0).await?;
    if show.json {
        let mut object = to_json(&run);
        object["events"] = entries.iter().map(|entry| json!(entry.happened)).collect();
        return Ok(show.object(&object)?);
    }
    let mut view = View::new(false);
    entries.iter().try_for_each(|entry| view.print_recorded(&entry.happened))?;
    if run.head.state == RunState::Running {
        show.line(format!(
            "{}; last heard of at {}",
            paint_state(show, &run),
            local_time(&run.head.seen_at.to_string())
        ))?;
    }
    Ok(())
}

async fn cancel(location: &WorkspaceLocation, show: Show, id: &RunId) -> anyhow::Result<()> {
    let records = open_records(&records_url(location)?).await?;
    let run = records.run(id).await?.ok_or_else(|| not_found(id))?;
    let mut run = run;
    if state(&run) == "running" {
        records.request_cancel(id).await?;
        let deadline = tokio::time::Instant::now() + CANCEL_TIMEOUT;
        while state(&run) == "running" && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            run = records.run(id).await?.ok_or_else(|| not_found(id))?;
        }
    }
    if show.json {
        show.object(&to_json(&run))?;
    } else {
        show.line(format!("{id} {}", paint_state(show, &run)))?;
    }
    match state(&run) {
        "running" => bail!("run {id} was asked to stop and has not yet"),
        _ => Ok(()),
    }
}

impl Reply {
    async fn send(self, location: &WorkspaceLocation, show: Show) -> anyhow::Result<()> {
        let Self { run, call, answer, because } = self;
        let answer = match (answer, because) {
            (Word::Allow, None) => ApprovalAnswer::Allow,
            (Word::Allow, Some(_)) => bail!("--because is for deny: an allowed call needs no reason"),
            (Word::Deny, because) => ApprovalAnswer::Deny(because),
        };
        let records: Arc<dyn RunRecords> = Arc::new(open_records(&records_url(location)?).await?);
        records.run(&run).await?.ok_or_else(|| not_found(&run))?;
        match ApprovalQueue::new(records).reply(&run, &call, &answer).await? {
            approval::Reply::Taken => {}
            approval::Reply::NoQuestion => bail!("no question was asked about call {call} in {run}"),
            approval::Reply::TooLate => bail!("the question about call {call} was answered before, or the run went on"),
        }
        let allowed = matches!(answer, ApprovalAnswer::Allow);
        if show.json {
            return Ok(show.object(&json!({ "run_id": run, "id": call, "allowed": allowed }))?);
        }
        Ok(show.line(format!("{call} {}", if allowed { "allowed" } else { "denied" }))?)
    }
}

impl Resume {
    async fn run(self, location: &WorkspaceLocation, json: bool) -> anyhow::Result<ExitCode> {
        let Self { run: id, limits, mcp, keep_running, json_events } = self;
        let json = json || json_events || !stdout().is_terminal();
        let url = records_url(location)?;
        let records = open_records(&url).await?;
        let run = records.run(&id).await?.ok_or_else(|| not_found(&id))?;
        if run.head.stop_reason == Some(StopReason::Completed) {
            bail!("run {id} has completed; there is nothing to go on with");
        }
        let mut plan = run.plan;
        let mut changed = limits.apply(&mut plan.settings);
        if let Some(price) = limits.price {
            plan.details["price"] = json!(price);
            changed = true;
        }
        if changed {
            records.update_plan(&id, &plan).await?;
        }
        let model: ModelChoice = plan.model.parse().context("the run's model")?;
        let price: Option<ModelPrice> =
            serde_json::from_value(plan.details["price"].clone()).context("the run's price")?;
        let model = super::model(location, &model, price)?;
        let name = plan.workspace.as_deref().context("the run has no workspace to go on in")?;
        let name: WorkspaceName = name.parse().context("the run's workspace")?;
        let preview_port =
            plan.details["preview_port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(3000);
        let app = WorkspaceApp::open(location, true).await?;
        let workspace = app.enter(&name).await?;
        let drive = Drive {
            app: Arc::new(app),
            url,
            workspace,
            model,
            preview_port,
            json,
            has_event_reader: json_events,
            mcp,
            end_action: EndAction::new(keep_running),
        };
        drive.run(id, RunStart::Resume).await
    }
}
