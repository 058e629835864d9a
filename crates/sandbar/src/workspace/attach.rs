//! `sandbar workspace attach`: switches a workspace to a running sandbox.

use super::Session;
use super::life::print_status;
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
        let workspace = session.app.enter(&self.name).await?;
        session.app.progress().show_step(format!("putting {} into sandbox {}", self.name, self.sandbox));
        workspace.attach(&self.sandbox).await?;
        session.app.leave().await;
        print_status(session, &self.name, &format!("is in sandbox {}", self.sandbox)).await
    }
}
