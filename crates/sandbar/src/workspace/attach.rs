//! `sandbar workspace attach`.

use super::Session;
use super::life::told;
use clap::Args;
use sdk::SandboxId;
use workspace::WorkspaceName;

/// Put a workspace into a sandbox that runs already, with the files that are there.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace attach shop iabc123

This is the way back to a sandbox that a move left behind while its provider could not be reached: `move` \
tells its id. The files of the sandbox that the workspace is in now are saved as a snapshot before it is ended. Any \
sandbox of a configured provider will do.")]
pub(super) struct Attach {
    /// The workspace
    name: WorkspaceName,
    /// The sandbox
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
}

impl Attach {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let workspace = session.house.enter(&self.name).await?;
        session.house.progress().doing(format!("putting {} into sandbox {}", self.name, self.sandbox));
        workspace.attach(&self.sandbox).await?;
        session.house.leave().await;
        told(session, &self.name, &format!("is in sandbox {}", self.sandbox)).await
    }
}
