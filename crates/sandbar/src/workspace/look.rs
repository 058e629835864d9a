//! `sandbar workspace list` and `show`: what is known of workspaces. Looking takes no lease and wakes nothing.

use super::{Session, house};
use crate::sandbox::show::{Colour, Show, ahead, local_time, printable, span};
use clap::Args;
use workspace::records::WorkspaceState;
use workspace::{WorkspaceName, WorkspaceView};

/// List workspaces.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace list
  sandbar workspace list --quiet                     names only
  sandbar workspace list --json | jq -r '.[] | select(.paused) | .workspace'")]
pub(super) struct List {
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl List {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let views = session.house.workspaces().list().await?;
        let show = session.show;
        if show.json {
            return Ok(show.object(&views)?);
        }
        if self.quiet {
            return Ok(views.iter().try_for_each(|view| show.line(view.workspace.as_str()))?);
        }
        if views.is_empty() {
            eprintln!("no workspace; `sandbar workspace create NAME` makes one");
            return Ok(());
        }
        let row = |view: &WorkspaceView| {
            vec![
                view.workspace.to_string(),
                state(show, view),
                view.provider.to_string(),
                view.sandbox.as_deref().map_or_else(|| "-".to_owned(), printable),
                ahead(&view.expires_at.to_string()).map_or_else(|| "now".to_owned(), span),
            ]
        };
        let rows: Vec<Vec<String>> = views.iter().map(row).collect();
        Ok(show.table(&["WORKSPACE", "STATE", "PROVIDER", "SANDBOX", "ENDS IN"], &rows)?)
    }
}

/// Show everything that is known of a workspace.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace show shop
  sandbar workspace show shop --json | jq -r .sandboxID")]
pub(super) struct ShowOne {
    /// The workspace
    name: WorkspaceName,
}

impl ShowOne {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let view = session.house.workspaces().show(&self.name).await.map_err(house::explain)?;
        let show = session.show;
        if show.json {
            return Ok(show.object(&view)?);
        }
        let moment = |at: jiff::Timestamp| local_time(&at.to_string());
        let left = ahead(&view.expires_at.to_string()).map_or_else(String::new, |left| format!(" (in {})", span(left)));
        let mut pairs = vec![
            ("workspace", view.workspace.to_string()),
            ("project", view.project_id.to_string()),
            ("state", state(show, &view)),
            ("provider", view.provider.to_string()),
        ];
        if let Some(sandbox) = &view.sandbox {
            pairs.push(("sandbox", printable(sandbox)));
        }
        if let Some(template) = &view.template {
            pairs.push(("template", printable(template)));
        }
        if let Some(server) = &view.dev_server {
            pairs.push(("dev server", printable(&format!("`{}` on port {}", server.command, server.port))));
        }
        if let Some(end) = view.sandbox_ends_at.filter(|_| view.state == WorkspaceState::Ready && !view.paused) {
            pairs.push(("sandbox ends", format!("{}, unless it is extended or replaced before", moment(end))));
        }
        pairs.push(("created", moment(view.created_at)));
        pairs.push(("ends", format!("{}{left}", moment(view.expires_at))));
        Ok(show.pairs(&pairs)?)
    }
}

fn state(show: Show, view: &WorkspaceView) -> String {
    match view.state {
        WorkspaceState::Ready if view.paused => show.paint(Colour::Yellow, "paused"),
        WorkspaceState::Ready => show.paint(Colour::Green, "ready"),
        WorkspaceState::SettingUp => show.paint(Colour::Yellow, "not set up"),
        WorkspaceState::Moving => show.paint(Colour::Yellow, "moving"),
        WorkspaceState::Stopped => show.paint(Colour::Dim, "stopped"),
    }
}
