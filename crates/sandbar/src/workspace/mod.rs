//! `sandbar workspace`: workspaces, which outlive their sandboxes. One file per subcommand, or per
//! group of related ones.
//!
//! Results go to stdout, everything else to stderr. Exit codes are those of `sandbar sandbox`. Each
//! command takes the workspace's lease, works, and releases it; the next command resumes an
//! operation that was interrupted.

pub(crate) mod app;
mod attach;
pub(crate) mod auto_screenshots;
mod create;
mod destroy;
mod exec;
mod files;
mod life;
mod progress;
pub(crate) mod queries;
mod screenshot_process;
mod snapshots;
mod timeline;

use crate::{logging, runtime};
use app::{DueScreenshots, WorkspaceApp, WorkspaceLocation};
use clap::{Args, Subcommand};
use cli::interrupt::{Stop, Stops};
use cli::show::Show;
use std::process::ExitCode;

/// Create and use workspaces: files that outlive any sandbox, on any provider.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar workspace create shop --repo . --dev 'npm run dev' --port 3000
  sandbar workspace exec shop -- npm test
  sandbar workspace cp shop:dist ./dist
  sandbar workspace snapshot shop
  sandbar workspace move shop --to e2b        the files come along; the dev server starts again there
  sandbar workspace pause shop
  sandbar workspace destroy shop              its snapshots stay: creating it again brings the files back

Providers come from the configuration in order of preference; without one, E2B_* variables are the first and this \
machine the last. `sandbar config show` tells which, `sandbar usage` what it costs.

Exit codes: 0 done, 1 failed, 2 not understood; `exec` passes on what the command returned.")]
pub(crate) struct Workspace {
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    location: WorkspaceLocation,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(Box<create::Create>),
    List(queries::List),
    Show(queries::ShowOne),
    Exec(exec::Exec),
    Ls(files::Ls),
    Read(files::Read),
    Write(files::Write),
    Cp(files::Cp),
    Url(files::Url),
    Snapshot(snapshots::Snapshot),
    Snapshots(snapshots::List),
    Restore(snapshots::Restore),
    Pause(life::Pause),
    Resume(life::Resume),
    Move(life::Move),
    Rotate(life::Rotate),
    Attach(attach::Attach),
    Destroy(destroy::Destroy),
    #[command(name = "pictures", hide = true)]
    TakeScreenshots(screenshot_process::TakeScreenshots),
}

impl Workspace {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        runtime::block_on(async {
            let show = Show::new(self.json);
            let app = match &self.command {
                Command::List(_) | Command::Show(_) => WorkspaceApp::open_without_start(&self.location).await?,
                _ => WorkspaceApp::open(&self.location, show.json).await?,
            };
            let session = Session { app, show, location: self.location };
            let (done, due) = match self.command.run(&session).await {
                Ok(Completion::Finished(code)) => (Ok(code), DueScreenshots::Take),
                Ok(Completion::Stopped(stop)) => (Ok(stop.exit()), DueScreenshots::Skip),
                Err(error) => (Err(error), DueScreenshots::Take),
            };
            session.app.close(due).await;
            done
        })
    }
}

impl Command {
    async fn run(self, session: &Session) -> anyhow::Result<Completion> {
        let passes_signals_on = matches!(self, Self::Exec(_) | Self::Cp(_));
        let work = self.execute(session);
        if passes_signals_on {
            return work.await.map(Completion::Finished);
        }
        let mut stops = Stops::install()?;
        tokio::select! {
            done = work => done.map(Completion::Finished),
            // Every operation can be cancelled at any point: the next command resumes it.
            stop = stops.next() => Ok(Completion::Stopped(stop)),
        }
    }

    async fn execute(self, session: &Session) -> anyhow::Result<ExitCode> {
        match self {
            Self::Exec(exec) => return exec.run(session).await,
            Self::Cp(cp) => return cp.run(session).await,
            Self::Ls(ls) => ls.run(session).await,
            Self::Read(read) => read.run(session).await,
            Self::Write(write) => write.run(session).await,
            Self::Url(url) => url.run(session).await,
            Self::Create(create) => create.run(session).await,
            Self::List(list) => list.run(session).await,
            Self::Show(show) => show.run(session).await,
            Self::Snapshot(snapshot) => snapshot.run(session).await,
            Self::Snapshots(snapshots) => snapshots.run(session).await,
            Self::Restore(restore) => restore.run(session).await,
            Self::Pause(pause) => pause.run(session).await,
            Self::Resume(resume) => resume.run(session).await,
            Self::Move(moving) => moving.run(session).await,
            Self::Rotate(rotate) => rotate.run(session).await,
            Self::Attach(attach) => attach.run(session).await,
            Self::Destroy(destroy) => destroy.run(session).await,
            Self::TakeScreenshots(screenshots) => screenshots.run(session).await,
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

enum Completion {
    Finished(ExitCode),
    Stopped(Stop),
}

/// What every subcommand uses.
struct Session {
    app: WorkspaceApp,
    show: Show,
    location: WorkspaceLocation,
}
