//! `sandbar workspace list` and `show`. Queries take no lease, start no server and resume nothing;
//! they ask the providers for the state of sandboxes that run by the records.

use super::snapshots::summarize_paths;
use super::{Session, app};
use clap::Args;
use cli::show::{Colour, Show, ahead, local_time, printable, span};
use serde::Serialize;
use serde_json::{Value, json};
use workspace::records::{OrphanRecord, WorkspaceState};
use workspace::{ORPHAN_GRACE, SandboxCondition, WorkspaceName, WorkspaceView, Workspaces};

/// Explains the states, for the help of both commands.
const STATES: &str = "\
States: ready; paused; unreachable: its provider does not answer, or this machine's server does not run (the next command \
starts it); ended: its sandbox is gone, and the next command brings it back with its newest snapshot; stopped: the same, or \
its own time was over; moving; setting_up.";

/// The record of a workspace, and the state of its sandbox.
pub(super) struct WorkspaceStatus {
    view: WorkspaceView,
    /// The state by record and provider, which replaces the record's.
    state: State,
}

/// The state of a workspace in results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    SettingUp,
    Ready,
    Paused,
    Moving,
    Stopped,
    Unreachable,
    Ended,
}

impl WorkspaceStatus {
    fn new(view: WorkspaceView, condition: Option<SandboxCondition>) -> Self {
        let state = match (view.state, condition) {
            (WorkspaceState::Ready, Some(SandboxCondition::Gone)) => State::Ended,
            (WorkspaceState::Ready, Some(SandboxCondition::Unreachable)) => State::Unreachable,
            (WorkspaceState::Ready, condition) => match view.paused || condition == Some(SandboxCondition::Paused) {
                true => State::Paused,
                false => State::Ready,
            },
            (WorkspaceState::SettingUp, _) => State::SettingUp,
            (WorkspaceState::Moving, _) => State::Moving,
            (WorkspaceState::Stopped, _) => State::Stopped,
        };
        Self { view, state }
    }

    /// Reads one workspace.
    pub(super) async fn load(workspaces: &Workspaces, name: &WorkspaceName) -> anyhow::Result<Self> {
        let view = workspaces.show(name).await.map_err(app::explain)?;
        let condition = workspaces.conditions(std::slice::from_ref(&view)).await.pop().flatten();
        Ok(Self::new(view, condition))
    }

    async fn all(workspaces: &Workspaces, views: Vec<WorkspaceView>) -> Vec<Self> {
        let conditions = workspaces.conditions(&views).await;
        views.into_iter().zip(conditions).map(|(view, condition)| Self::new(view, condition)).collect()
    }

    /// The JSON object for programs.
    pub(super) fn to_json(&self) -> Value {
        let mut object = json!(self.view);
        object["state"] = json!(self.state);
        object["paused"] = json!(self.state == State::Paused);
        object
    }

    fn paint_state(&self, show: Show) -> String {
        match self.state {
            State::Paused => show.paint(Colour::Yellow, "paused"),
            State::Ready => show.paint(Colour::Green, "ready"),
            State::SettingUp => show.paint(Colour::Yellow, "setting_up"),
            State::Moving => show.paint(Colour::Yellow, "moving"),
            State::Stopped => show.paint(Colour::Dim, "stopped"),
            State::Unreachable => show.paint(Colour::Red, "unreachable"),
            State::Ended => show.paint(Colour::Dim, "ended"),
        }
    }
}

/// List workspaces.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  sandbar workspace list
  sandbar workspace list --quiet                     names only; no provider is asked
  sandbar workspace list --json | jq -r '.[] | select(.paused) | .workspace'

{STATES}"))]
pub(super) struct List {
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl List {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspaces = session.app.workspaces();
        let views = workspaces.list().await?;
        let show = session.show;
        if self.quiet && !show.json {
            return Ok(views.iter().try_for_each(|view| show.line(view.workspace.as_str()))?);
        }
        let all = WorkspaceStatus::all(workspaces, views).await;
        if show.json {
            return Ok(show.object(&all.iter().map(WorkspaceStatus::to_json).collect::<Vec<_>>())?);
        }
        for orphan in workspaces.recorded_orphans().await? {
            eprintln!("{}", describe_orphan(&orphan));
        }
        if all.is_empty() {
            eprintln!("no workspace; `sandbar workspace create NAME` makes one");
            return Ok(());
        }
        let row = |status: &WorkspaceStatus| {
            let view = &status.view;
            vec![
                view.workspace.to_string(),
                status.paint_state(show),
                view.provider.to_string(),
                view.sandbox.as_deref().map_or_else(|| "-".to_owned(), printable),
                ahead(&view.expires_at.to_string()).map_or_else(|| "now".to_owned(), span),
            ]
        };
        let rows: Vec<Vec<String>> = all.iter().map(row).collect();
        Ok(show.table(&["WORKSPACE", "STATE", "PROVIDER", "SANDBOX", "ENDS IN"], &rows)?)
    }
}

/// Describes an orphan that a sweep found, with the command that keeps it.
pub(crate) fn describe_orphan(orphan: &OrphanRecord) -> String {
    let OrphanRecord { sandbox, provider, workspace, seen_at, .. } = orphan;
    let ends = seen_at.saturating_add(ORPHAN_GRACE).unwrap_or(jiff::Timestamp::MAX);
    format!(
        "sandbox {} of {provider} was made for workspace {} and no record names it; the server ends it after {}: \
         `sandbar workspace attach {1} {0}` keeps it",
        printable(sandbox.as_str()),
        printable(workspace),
        local_time(&ends.to_string()),
    )
}

/// Show everything that is known of a workspace.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  sandbar workspace show shop
  sandbar workspace show shop --json | jq -r .sandboxID

{STATES}"))]
pub(super) struct ShowOne {
    /// The workspace
    name: WorkspaceName,
}

impl ShowOne {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspaces = session.app.workspaces();
        let status = WorkspaceStatus::load(workspaces, &self.name).await?;
        let show = session.show;
        let limits = workspaces.orchestrator().provider(&status.view.provider).ok().map(|provider| provider.limits());
        let runs = status.state == State::Ready;
        let excluded = if runs { workspaces.excluded_folders(&status.view).await } else { None };
        if show.json {
            let mut object = status.to_json();
            object["limits"] = json!(limits);
            object["left_out"] =
                json!(excluded.map(|paths| paths.iter().map(|path| path.text().into_owned()).collect::<Vec<_>>()));
            return Ok(show.object(&object)?);
        }
        let view = &status.view;
        let moment = |at: jiff::Timestamp| local_time(&at.to_string());
        let left = ahead(&view.expires_at.to_string()).map_or_else(String::new, |left| format!(" (in {})", span(left)));
        let mut pairs = vec![
            ("workspace", view.workspace.to_string()),
            ("project", view.project_id.to_string()),
            ("state", status.paint_state(show)),
            ("provider", view.provider.to_string()),
        ];
        if let Some(limits) = &limits {
            pairs.push(("limits", limits.to_string()));
        }
        if let Some(sandbox) = &view.sandbox {
            pairs.push(("sandbox", printable(sandbox)));
        }
        if let Some(template) = &view.template {
            pairs.push(("template", printable(template)));
        }
        if let Some(server) = &view.dev_server {
            pairs.push(("dev server", printable(&format!("`{}` on port {}", server.command, server.port))));
        }
        if let Some(end) = view.sandbox_ends_at.filter(|_| runs) {
            pairs.push(("sandbox ends", format!("{}, unless it is extended or replaced before", moment(end))));
        }
        if let Some(excluded) = excluded.filter(|paths| !paths.is_empty()) {
            pairs.push((
                "not kept",
                format!("{} (generated; absent after a change of sandbox)", summarize_paths(&excluded)),
            ));
        }
        if let Some(saved) = view.saved_at {
            pairs.push(("saved", moment(saved)));
        }
        pairs.push(("created", moment(view.created_at)));
        pairs.push(("ends", format!("{}{left}", moment(view.expires_at))));
        Ok(show.pairs(&pairs)?)
    }
}
