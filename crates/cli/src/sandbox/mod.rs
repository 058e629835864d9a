//! `sandbar sandbox`: sandboxes of any E2B service from the command line. One file per subcommand,
//! or per group of related ones.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong
//! arguments; `exec` and `shell` return the exit code of the command.

pub mod cp;
mod create;
mod exec;
pub mod files;
mod fork;
mod info;
mod kill;
mod life;
mod list;
mod logs;
mod metrics;
mod process_options;
pub mod run;
mod shell;
mod snapshot;
mod stdin;
mod url;
mod watch;

use crate::Connect;
use crate::show::Show;
use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use sdk::model::{SandboxDetail, SandboxState};
use sdk::{Client, SandboxError, SandboxId};
use std::process::ExitCode;

/// Create, use and end sandboxes, here or on any E2B service.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ID=$(sandbar sandbox create)  a new sandbox; its id is all that stdout gets
  sandbar sandbox exec $ID -- python3 -c 'print(1)'
  sandbar sandbox shell $ID
  sandbar sandbox cp ./project $ID:project
  sandbar sandbox kill $ID

While `sandbar up` runs, nothing need be set. For another service set E2B_API_KEY, and E2B_API_URL and \
E2B_SANDBOX_URL (or E2B_DOMAIN) for one that is not E2B's own; flags win over variables.

Exit codes: 0 done, 1 failed, 2 not understood; `exec` and `shell` pass on what the command returned.")]
pub struct Sandbox<E: Args> {
    /// Print JSON for programs, in the protocol's own words
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    endpoint: E,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(create::Create),
    #[command(visible_alias = "ps")]
    List(list::List),
    Info(info::Info),
    Exec(exec::Exec),
    Shell(shell::Shell),
    Cp(cp::Cp),
    Ls(files::Ls),
    Cat(files::Cat),
    Watch(watch::Watch),
    Logs(logs::Logs),
    Metrics(metrics::Metrics),
    Pause(life::Pause),
    Resume(life::Resume),
    Timeout(life::Timeout),
    Fork(fork::Fork),
    Snapshot(snapshot::Snapshot),
    Url(url::Url),
    Kill(kill::Kill),
}

impl<E: Args + Connect> Sandbox<E> {
    /// Runs the command; returns the exit code of what ran in the sandbox, if that has one.
    /// # Errors
    /// When the service cannot be chosen or refuses the call; the text says what to do.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let session = Session { client: self.endpoint.connect()?, show: Show::new(self.json) };
        self.command.run(&session).await
    }
}

impl Command {
    async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        match self {
            Self::Exec(exec) => return exec.run(session).await,
            Self::Shell(shell) => return shell.run(session).await,
            Self::Cp(cp) => return cp.run(session).await,
            Self::Fork(fork) => return fork.run(session).await,
            Self::Kill(kill) => return kill.run(session).await,
            Self::Create(create) => create.run(session).await,
            Self::List(list) => list.run(session).await,
            Self::Info(info) => info.run(session).await,
            Self::Ls(ls) => ls.run(session).await,
            Self::Cat(cat) => cat.run(session).await,
            Self::Watch(watch) => watch.run(session).await,
            Self::Logs(logs) => logs.run(session).await,
            Self::Metrics(metrics) => metrics.run(session).await,
            Self::Pause(pause) => pause.run(session).await,
            Self::Resume(resume) => resume.run(session).await,
            Self::Timeout(timeout) => timeout.run(session).await,
            Self::Snapshot(snapshot) => snapshot.run(session).await,
            Self::Url(url) => url.run(session).await,
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What every subcommand uses.
struct Session {
    client: Client,
    show: Show,
}

impl Session {
    async fn detail(&self, id: &SandboxId) -> anyhow::Result<SandboxDetail> {
        self.client.info(id).await.map_err(explain)
    }

    /// Attaches to a running sandbox without changing it: attaching neither resumes a sandbox nor
    /// extends its timeout.
    async fn sandbox(&self, id: &SandboxId) -> anyhow::Result<sdk::Sandbox> {
        let detail = self.detail(id).await?;
        let wakes = detail.lifecycle.is_some_and(|lifecycle| lifecycle.auto_resume);
        if detail.listed.state == SandboxState::Paused && !wakes {
            bail!("sandbox {id} is paused; `sandbar sandbox resume {id}` wakes it");
        }
        Ok(self.client.attach(&detail)?)
    }
}

/// Adds what to do to errors for which this program has a command.
pub fn explain(error: SandboxError) -> anyhow::Error {
    match error {
        SandboxError::NotFound { id } => {
            anyhow!("sandbox {id} does not exist (any more); `sandbar sandbox list` shows those that do")
        }
        other => other.into(),
    }
}
