//! `sandbar sandbox cp`: copies files and directories to a sandbox and from one.
//!
//! Invariant: under its final name a file is either unchanged or complete. Each file is written to
//! a draft in the same directory and renamed when it is complete; an interrupted copy removes its
//! drafts and is not resumed.

mod down;
mod drafts;
mod path;
mod progress;
mod up;

use super::Session;
use crate::interrupt::Stops;
use crate::show::{Show, size};
use crate::values::CopySide;
use clap::Args;
use progress::Progress;
use sdk::Sandbox;
use serde_json::json;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Files that are copied concurrently.
const MAX_CONCURRENT: usize = 8;

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
only by a whole one: an interrupted copy leaves no half file, and the next one begins again. Executable files \
stay executable; links stay links (from a sandbox only those that lead to somewhere in the copied directory); \
owners, times and other permissions are not kept. A local name with a colon is written ./a:b.")]
pub struct Cp {
    /// PATH, or ID:PATH
    from: CopySide,
    /// ID:PATH, or PATH
    to: CopySide,
    /// Who owns what is written in the sandbox, and whose home relative paths begin at
    #[arg(long, short)]
    user: Option<String>,
}

/// The result of a copy.
#[derive(Default)]
struct Copied {
    /// The final path.
    to: String,
    files: u64,
    bytes: u64,
    links: u64,
    /// Entries that were not copied, each with its reason.
    skipped: Vec<String>,
}

impl Cp {
    pub(super) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let (sandbox, direction) = match (&self.from, &self.to) {
            (CopySide::Here(from), CopySide::Sandbox(to)) => {
                (session.sandbox(&to.id).await?, Direction::Up { from, to: &to.path })
            }
            (CopySide::Sandbox(from), CopySide::Here(to)) => {
                (session.sandbox(&from.id).await?, Direction::Down { from: &from.path, to })
            }
            (CopySide::Here(_), CopySide::Here(_)) => {
                return Ok(usage_error("neither side is in a sandbox; write ID:PATH for the one that is"));
            }
            (CopySide::Sandbox(_), CopySide::Sandbox(_)) => {
                return Ok(usage_error("both sides are in a sandbox; copy to this machine first, then from it"));
            }
        };
        copy(&sandbox, direction, self.user.as_deref(), session.show).await
    }
}

/// Source and destination of a copy.
pub enum Direction<'a> {
    /// To the sandbox.
    Up { from: &'a Path, to: &'a str },
    /// From the sandbox.
    Down { from: &'a str, to: &'a Path },
}

/// Copies, and prints the result. A signal cancels the copy and leaves no partial file.
pub async fn copy(
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
                    up.remove_drafts().await;
                    progress.interrupted();
                    return Ok(stop.exit());
                }
            };
            if copied.is_err() {
                up.remove_drafts().await;
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
        // Like cp, scripts get no output.
        if stderr().is_terminal() {
            let files = if copied.files == 1 { "1 file".to_owned() } else { format!("{} files", copied.files) };
            eprintln!("copied {files}, {}, to {} in {:.1} s", size(copied.bytes), copied.to, time.as_secs_f64());
        }
        Ok(())
    }
}

fn usage_error(what: &str) -> ExitCode {
    eprintln!("sandbar: {what}");
    ExitCode::from(2)
}
