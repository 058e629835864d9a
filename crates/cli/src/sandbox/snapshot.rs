//! `sandbar sandbox snapshot`: takes a snapshot of a sandbox.

use super::{Session, explain};
use clap::Args;
use sdk::{NewSnapshot, SandboxId};

/// Keep the state of a sandbox as a template for others; it goes on running.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox snapshot iabc123  prints the snapshot's id
  sandbar sandbox snapshot iabc123 --name ready --files-only
  sandbar sandbox create \"$(sandbar sandbox snapshot iabc123)\"")]
pub(crate) struct Snapshot {
    /// The sandbox
    id: SandboxId,
    /// A name for it; the same name again makes a newer state of it
    #[arg(long)]
    name: Option<String>,
    /// Keep only the files, and not the processes
    #[arg(long)]
    files_only: bool,
}

impl Snapshot {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let wanted = self.name.map_or_else(NewSnapshot::unnamed, NewSnapshot::named);
        let wanted = if self.files_only { wanted.files_only() } else { wanted };
        let snapshot = session.client.snapshot(&self.id, wanted).await.map_err(explain)?;
        if session.show.json {
            return Ok(session.show.object(&snapshot)?);
        }
        Ok(session.show.line(snapshot.snapshot_id)?)
    }
}
