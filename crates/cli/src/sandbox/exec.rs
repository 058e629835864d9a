//! `sandbar sandbox exec`: runs a command in a sandbox.

use super::Session;
use super::run::Run;
use crate::keep;
use clap::Args;
use sdk::SandboxId;
use std::process::ExitCode;
use tokio::task::JoinSet;

/// Run a command in a sandbox: its exit code is this program's.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox exec iabc123 -- ls -l 'a b'         arguments arrive exactly as given
  sandbar sandbox exec iabc123 -c 'ls *.txt | wc -l'  a line for the login shell (bash -l -c)
  tar c . | sandbar sandbox exec iabc123 --cwd project -- tar x
  sandbar sandbox exec iabc123 --background --tag web -- python3 -m http.server
  sandbar sandbox exec iabc123 --json -- make         {stdout, stderr, exit_code, duration_ms}

This program's input is passed on, unless it is a terminal; for that there is `sandbar sandbox shell`.

Exit codes: the command's own; 128 + N when signal N ended it; 124 when --timeout did; 1 when it could not be \
run or was lost, with a line on stderr. Ctrl-C interrupts the command, then kills it, and exits with 130; SIGTERM \
and a closed terminal end it too. When the connection is lost, the command is taken up again by its pid; a line on \
stderr says that output may be missing.

When this program is killed with SIGKILL nothing can be sent any more: the command runs on until it ends, or its \
sandbox does, as commands do on any E2B service whose client went away. --timeout sets a limit that holds in any case.")]
pub(crate) struct Exec {
    /// The sandbox
    id: SandboxId,
    /// Keep the sandbox alive while the command runs
    #[arg(long, conflicts_with = "background")]
    keep_alive: bool,
    #[command(flatten)]
    run: Run,
}

impl Exec {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let sandbox = session.sandbox(&self.id).await?;
        let mut keep_alive = JoinSet::new();
        if self.keep_alive {
            keep_alive.spawn(keep::alive(sandbox.clone()));
        }
        let done = self.run.run(&sandbox, session.show).await;
        keep_alive.shutdown().await;
        done
    }
}
