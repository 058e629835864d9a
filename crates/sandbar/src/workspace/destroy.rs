//! `sandbar workspace destroy`: saves and ends a workspace, or deletes it with its checkpoints.

use super::{Session, app};
use anyhow::{Context as _, bail};
use clap::Args;
use cli::ask;
use serde_json::json;
use workspace::{OpenError, Unsaved, WorkspaceName};

/// End a workspace and its sandbox; its snapshots stay.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace destroy shop             asks first
  sandbar workspace destroy shop --yes
  sandbar workspace destroy shop --yes --discard     also when its files cannot be saved any more
  sandbar workspace destroy shop --purge             nothing stays: its snapshots are deleted, too; asks first

Its files are saved before, unless with --purge. Creating a workspace of the same name brings them back, and its dev server.")]
pub(super) struct Destroy {
    /// The workspace
    name: WorkspaceName,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Go on when the files cannot be saved: what changed since the last snapshot is lost
    #[arg(long)]
    discard: bool,
    /// Delete all its snapshots, too; also those of a workspace that was destroyed before
    #[arg(long, conflicts_with = "discard")]
    purge: bool,
}

impl Destroy {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        if self.purge {
            return self.purge(session).await;
        }
        let question = format!("End workspace {} and its sandbox? Its files are saved before.", self.name);
        if !self.yes && !ask::confirm(&format!("end workspace {}", self.name), &question)? {
            bail!("nothing was ended");
        }
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("saving and ending {}", self.name));
        let unsaved = if self.discard { Unsaved::Discard } else { Unsaved::Keep };
        let saved =
            workspace.destroy(unsaved).await.context("the workspace is as it was; --discard ends it all the same")?;
        session.app.progress().done();
        if session.show.json {
            return Ok(session
                .show
                .object(&json!({ "workspace": self.name, "destroyed": true, "snapshot": saved }))?);
        }
        Ok(session.show.line(match saved {
            Some(stamp) => format!("{} destroyed; snapshot {stamp} has its files", self.name),
            None => format!("{} destroyed", self.name),
        })?)
    }

    /// Ends the workspace without saving it, and deletes its checkpoints.
    async fn purge(self, session: &Session) -> anyhow::Result<()> {
        let Self { name, yes, .. } = self;
        let workspaces = session.app.workspaces();
        let view = match workspaces.show(&name).await {
            Ok(view) => Some(view),
            Err(OpenError::NotFound(_)) => None,
            Err(error) => return Err(app::explain(error)),
        };
        let project = match &view {
            Some(view) => view.project_id.clone(),
            None => name.as_str().parse()?,
        };
        let snapshots = workspaces.checkpoints_of(&project).await?.len();
        if view.is_none() && snapshots == 0 {
            return Err(app::explain(OpenError::NotFound(name)));
        }
        let question = format!("End workspace {name} and delete its files and all {snapshots} snapshots for good?");
        if !yes && !ask::confirm(&format!("delete workspace {name} and all its snapshots"), &question)? {
            bail!("nothing was deleted");
        }
        if view.is_some() {
            let workspace = session.app.enter(&name).await?;
            session.app.progress().show_step(format!("ending {name}"));
            workspace.destroy(Unsaved::Unwanted).await?;
        }
        workspaces.remove_checkpoints_of(&project).await?;
        session.app.progress().done();
        if session.show.json {
            let done = json!({ "workspace": name, "destroyed": view.is_some(), "snapshots_deleted": snapshots });
            return Ok(session.show.object(&done)?);
        }
        Ok(session.show.line(format!("{name} destroyed, and {snapshots} snapshots deleted"))?)
    }
}
