//! `sandbar workspace exec`: runs a command in the sandbox of a workspace.

use super::Session;
use clap::Args;
use cli::sandbox::run::{Run, kill_leftovers};
use cli::show::{printable, printable_lines};
use std::process::ExitCode;
use tokio::task::JoinSet;
use uuid::Uuid;
use workspace::WorkspaceName;
use workspace::setup::PROJECT_DIRECTORY;

/// Prefix of the tags of commands that this command runs. Only the process that has the workspace's
/// lease runs them, so that any other one was left by a killed process.
const MARK: &str = "sandbar-exec-";

/// Run a command in a workspace: its exit code is this program's.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace exec shop -- ls -l 'a b'          arguments arrive exactly as given
  sandbar workspace exec shop -c 'npm ci && npm test'
  sandbar workspace exec shop --json -- make          {stdout, stderr, exit_code, duration_ms}
  sandbar workspace exec shop --background -- ./serve  stays when this program has ended

It begins in the project, /home/user/project, as the tools do; snapshots keep all of /home/user. A paused workspace is woken, \
one whose sandbox is gone comes back with the files of its newest snapshot; stderr says so, and since when changes are gone.

While it runs, the workspace is this process's own; others wait for it. Ctrl-C, SIGTERM and a closed terminal end the \
command. When this program is killed with SIGKILL nothing can be sent any more: the command runs on until the next \
`exec` in the workspace ends it, or its sandbox ends; --timeout sets a limit that holds in any case.

Like ssh, this ends when everybody has closed the command's outputs, not only the command itself: what is left running \
with `&` needs outputs of its own (`>log 2>&1 &`), or --background.

Exit codes are those of `sandbar sandbox exec`.")]
pub(super) struct Exec {
    /// The workspace
    name: WorkspaceName,
    #[command(flatten)]
    run: Run,
}

impl Exec {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let workspace = session.app.enter(&self.name).await?;
        let guard = workspace.enter().await?;
        session.app.progress().hide();
        for notice in guard.notices() {
            eprintln!("sandbar: {}", printable_lines(&notice));
        }
        let mark = format!("{MARK}{}", Uuid::new_v4().simple());
        let mut helpers = JoinSet::new();
        helpers.spawn(kill_leftovers(guard.sandbox().clone(), MARK, mark.clone()));
        let begins = guard.sandbox().files().stat(PROJECT_DIRECTORY).await.is_ok_and(|found| found.is_directory());
        let run = if begins { self.run.default_cwd(PROJECT_DIRECTORY) } else { self.run };
        let done = run.default_tag(&mark).run(guard.sandbox(), session.show).await;
        while let Some(ended) = helpers.join_next().await {
            for line in ended.unwrap_or_default() {
                eprintln!("sandbar: ended what an `exec` that was killed had left running: {}", printable(&line));
            }
        }
        done
    }
}
