//! `sandbar workspace exec`.

use super::Session;
use crate::sandbox::run::Run;
use crate::sandbox::show::printable;
use clap::Args;
use std::process::ExitCode;
use workspace::WorkspaceName;

/// The directory that snapshots keep.
const ROOT: &str = "/home/user";

/// Run a command in a workspace: its exit code is this program's.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace exec shop -- ls -l 'a b'          arguments arrive exactly as given
  sandbar workspace exec shop -c 'cd project && npm test'
  sandbar workspace exec shop --json -- make          {stdout, stderr, exit_code, duration_ms}

It begins in the directory that snapshots keep, /home/user; the project is in ./project. A paused workspace is woken, \
one whose sandbox is gone comes back with the files of its newest snapshot; stderr says so.

While it runs, the workspace is this process's own; others wait for it.

Exit codes are those of `sandbar sandbox exec`.")]
pub(super) struct Exec {
    /// The workspace
    name: WorkspaceName,
    #[command(flatten)]
    run: Run,
}

impl Exec {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let workspace = session.house.enter(&self.name).await?;
        let pass = workspace.enter().await?;
        session.house.progress().hide();
        for notice in pass.notices() {
            eprintln!("sandbar: {}", printable(&notice));
        }
        self.run.beginning_in(ROOT).run(pass.sandbox(), session.show).await
    }
}
