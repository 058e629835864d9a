//! `sandbar workspace destroy`.

use super::Session;
use crate::sandbox::ask;
use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;
use workspace::{Unsaved, WorkspaceName};

/// End a workspace and its sandbox; its snapshots stay.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace destroy shop             asks first
  sandbar workspace destroy shop --yes
  sandbar workspace destroy shop --yes --discard     also when its files cannot be saved any more

Its files are saved before. Creating a workspace of the same name brings them back, and its dev server.")]
pub(super) struct Destroy {
    /// The workspace
    name: WorkspaceName,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Go on when the files cannot be saved: what changed since the last snapshot is lost
    #[arg(long)]
    discard: bool,
}

impl Destroy {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let question = format!("End workspace {} and its sandbox? Its files are saved before.", self.name);
        if !self.yes && !ask::confirmed(&format!("end workspace {}", self.name), &question)? {
            bail!("nothing was ended");
        }
        let workspace = session.house.enter(&self.name).await?;
        session.house.progress().doing(format!("saving and ending {}", self.name));
        let unsaved = if self.discard { Unsaved::Discard } else { Unsaved::Keep };
        let saved =
            workspace.destroy(unsaved).await.context("the workspace is as it was; --discard ends it all the same")?;
        session.house.progress().done();
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
}
