//! `sandbar sandbox cp`: files and directories, to a sandbox and from one.
//!
//! Invariant: under its final name a file is either as it was before or whole. Each is written under a draft's name in
//! the same directory and moved when it is complete; what is interrupted leaves no draft behind. Nothing is resumed: the
//! next copy begins anew.

mod down;
mod drafts;
mod path;
mod progress;
mod up;

use super::Session;
use super::interrupt::Stops;
use super::show::{Show, size};
use super::values::Place;
use clap::Args;
use progress::Progress;
use sdk::Sandbox;
use serde_json::json;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Files under way at once.
const AT_ONCE: usize = 8;

/// Copy files and directories to a sandbox, or from one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox cp data.csv iabc123:         to the user's home
  sandbar sandbox cp ./project iabc123:/srv    becomes /srv/project, if /srv is a directory
  sandbar sandbox cp ./project/. iabc123:/srv  what is in it, into /srv
  sandbar sandbox cp iabc123:project/report.pdf .
  sandbar sandbox cp --user root iabc123:/etc ./etc

Directories are copied with all that is in them, into what is there already, as cp -r does. A file is replaced \
only by a whole one: an interrupted copy leaves no half file, and the next one begins anew. Executable files \
stay executable; links stay links (from a sandbox only those that lead to somewhere in the copied directory); \
owners, times and other permissions are not kept. A local name with a colon is written ./a:b.")]
pub(crate) struct Cp {
    /// PATH, or ID:PATH
    from: Place,
    /// ID:PATH, or PATH
    to: Place,
    /// Who owns what is written in the sandbox, and whose home relative paths begin at
    #[arg(long, short)]
    user: Option<String>,
}

/// What was copied.
#[derive(Default)]
struct Copied {
    /// Where to: the final name.
    to: String,
    files: u64,
    bytes: u64,
    links: u64,
    /// What was left out, each with its reason.
    skipped: Vec<String>,
}

impl Cp {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let (sandbox, direction) = match (&self.from, &self.to) {
            (Place::Here(from), Place::Sandbox(to)) => {
                (session.sandbox(&to.id).await?, Direction::Up { from, to: &to.path })
            }
            (Place::Sandbox(from), Place::Here(to)) => {
                (session.sandbox(&from.id).await?, Direction::Down { from: &from.path, to })
            }
            (Place::Here(_), Place::Here(_)) => {
                return Ok(misunderstood("neither side is in a sandbox; write ID:PATH for the one that is"));
            }
            (Place::Sandbox(_), Place::Sandbox(_)) => {
                return Ok(misunderstood("both sides are in a sandbox; copy to this machine first, then from it"));
            }
        };
        copy(&sandbox, direction, self.user.as_deref(), session.show).await
    }
}

/// What is copied where.
pub(crate) enum Direction<'a> {
    /// To the sandbox.
    Up { from: &'a Path, to: &'a str },
    /// From it.
    Down { from: &'a str, to: &'a Path },
}

/// Copies, and reports what was copied. A signal ends it and leaves no half file.
pub(crate) async fn copy(
    sandbox: &Sandbox,
    direction: Direction<'_>,
    user: Option<&str>,
    show: Show,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut stops = Stops::install()?;
    let progress = Progress::new(show.json);
    let copied = match direction {
        Direction::Up { from, to } => {
            let up = up::Up::new(sandbox, user, &progress);
            let copied = tokio::select! {
                copied = up.copy(from, to) => copied,
                stop = stops.next() => {
                    up.tidy().await;
                    progress.interrupted();
                    return Ok(stop.exit());
                }
            };
            if copied.is_err() {
                up.tidy().await;
            }
            copied
        }
        Direction::Down { from, to } => {
            let down = down::Down::new(sandbox, user, &progress);
            tokio::select! {
                copied = down.copy(from, to) => copied,
                stop = stops.next() => {
                    progress.interrupted();
                    return Ok(stop.exit());
                }
            }
        }
    };
    progress.finish();
    copied?.report(show, started.elapsed())?;
    Ok(ExitCode::SUCCESS)
}

impl Copied {
    fn report(&self, show: Show, time: Duration) -> std::io::Result<()> {
        let copied = self;
        for skipped in &copied.skipped {
            eprintln!("sandbar: left out: {skipped}");
        }
        if show.json {
            return show.object(&json!({
                "to": copied.to,
                "files": copied.files,
                "bytes": copied.bytes,
                "links": copied.links,
                "skipped": copied.skipped,
                "duration_ms": u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            }));
        }
        // Like cp, silent to scripts.
        if stderr().is_terminal() {
            let files = if copied.files == 1 { "1 file".to_owned() } else { format!("{} files", copied.files) };
            eprintln!("copied {files}, {}, to {} in {:.1} s", size(copied.bytes), copied.to, time.as_secs_f64());
        }
        Ok(())
    }
}

fn misunderstood(what: &str) -> ExitCode {
    eprintln!("sandbar: {what}");
    ExitCode::from(2)
}
