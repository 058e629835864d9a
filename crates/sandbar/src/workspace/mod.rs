//! `sandbar workspace`: workspaces that outlive every sandbox they run in. One file a subcommand, or a few that belong
//! together.
//!
//! Results go to stdout, everything else to stderr. Exit codes are those of `sandbar sandbox`. Each run of the program takes
//! the workspace's lease, works, and gives it back; what a run breaks off, the next one puts right.

mod attach;
mod create;
mod destroy;
mod exec;
mod files;
pub(crate) mod house;
mod life;
pub(crate) mod look;
pub(crate) mod photographs;
mod pictures;
mod progress;
mod snapshots;
mod timeline;

use crate::sandbox::interrupt::{Stop, Stops};
use crate::sandbox::show::Show;
use crate::{logging, runtime};
use clap::{Args, Subcommand};
use house::{Due, House, Place};
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
    place: Place,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(Box<create::Create>),
    List(look::List),
    Show(look::ShowOne),
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
    #[command(hide = true)]
    Pictures(pictures::Pictures),
}

impl Workspace {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        logging::start_if_wanted()?;
        runtime::block_on(async {
            let show = Show::new(self.json);
            let house = match &self.command {
                Command::List(_) | Command::Show(_) => House::looking(&self.place).await?,
                _ => House::open(&self.place, show.json).await?,
            };
            let session = Session { house, show, place: self.place };
            let (done, due) = match self.command.run(&session).await {
                Ok(Ended::ByItself(code)) => (Ok(code), Due::Taken),
                Ok(Ended::By(stop)) => (Ok(stop.exit()), Due::LeftOut),
                Err(error) => (Err(error), Due::Taken),
            };
            session.house.close(due).await;
            done
        })
    }
}

impl Command {
    async fn run(self, session: &Session) -> anyhow::Result<Ended> {
        let passes_signals_on = matches!(self, Self::Exec(_) | Self::Cp(_));
        let work = self.done(session);
        if passes_signals_on {
            return work.await.map(Ended::ByItself);
        }
        let mut stops = Stops::install()?;
        tokio::select! {
            done = work => done.map(Ended::ByItself),
            // Whatever was under way may be broken off at any point: the next run puts it right.
            stop = stops.next() => Ok(Ended::By(stop)),
        }
    }

    async fn done(self, session: &Session) -> anyhow::Result<ExitCode> {
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
            Self::Pictures(pictures) => pictures.run(session).await,
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

enum Ended {
    ByItself(ExitCode),
    By(Stop),
}

/// What every subcommand works with.
struct Session {
    house: House,
    show: Show,
    place: Place,
}
