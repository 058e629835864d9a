//! `sandbar sandbox shell`: a terminal in a sandbox, behind the one this program runs in.

use super::interrupt::Stops;
use super::run::{code, search};
use super::surroundings::Surroundings;
use super::{Session, keep, stdin, terminal};
use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use clap::Args;
use sdk::{CommandError, Process, Running, SandboxId, Size};
use std::convert::Infallible;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// For ending a shell that nobody sits at any more.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Open a shell in a sandbox; its exit code is this program's.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar sandbox shell iabc123
  sandbar sandbox shell iabc123 --user root --cwd /etc
  sandbar sandbox shell iabc123 -- python3  another program than bash

The sandbox is kept alive while the shell is open, and for five minutes after. `exit` or Ctrl-D leaves it.")]
pub(crate) struct Shell {
    /// The sandbox
    id: SandboxId,
    #[command(flatten)]
    surroundings: Surroundings,
    /// Let the sandbox end by its lifetime although the shell is open
    #[arg(long)]
    no_keep_alive: bool,
    /// Another program than the login shell, and its arguments
    #[arg(last = true, value_name = "ARGV")]
    argv: Vec<String>,
}

impl Shell {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<ExitCode> {
        let shell = self.shell()?;
        let sandbox = session.sandbox(&self.id).await?;
        let mut resized = signal(SignalKind::window_change()).context("cannot watch for signals")?;
        let mut stops = Stops::install()?;
        // Before the shell is there, so that nothing typed meanwhile is shown twice.
        let raw = terminal::Raw::enter()?;
        let mut running = sandbox.pty().create(terminal::size(), shell).await?;
        let (resizes, wanted) = mpsc::channel(1);
        let mut helpers = JoinSet::new();
        helpers.spawn(type_in(running.process(), wanted));
        if !self.no_keep_alive {
            helpers.spawn(keep::alive(sandbox.clone()));
        }
        let left = tokio::select! {
            exit = show(&mut running) => Left::Ended(exit),
            never = pass_on(&mut resized, resizes) => match never {},
            stop = stops.next() => Left::Stopped(stop),
        };
        helpers.shutdown().await;
        drop(raw);
        match left {
            Left::Ended(exit) => Ok(ExitCode::from(exit?)),
            Left::Stopped(stop) => {
                // As when a terminal is closed. If it cannot be reached, it ends with the sandbox.
                let _ = sandbox.within(LAST_WORD).pty().kill(running.pid()).await;
                Ok(stop.exit())
            }
        }
    }

    fn shell(&self) -> anyhow::Result<sdk::Shell> {
        let mut shell = match self.argv.split_first() {
            Some((program, arguments)) => sdk::Shell::exec(program, arguments),
            None => sdk::Shell::default(),
        };
        // What this terminal understands, which the sandbox cannot know.
        for name in ["TERM", "COLORTERM"] {
            if let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) {
                shell = shell.env(name, value);
            }
        }
        Ok(self.surroundings.place(shell)?.no_timeout())
    }
}

enum Left {
    Ended(anyhow::Result<u8>),
    Stopped(super::interrupt::Stop),
}

/// Shows what the shell says until it ends.
async fn show(running: &mut Running) -> anyhow::Result<u8> {
    loop {
        match running.next().await {
            Ok(Some(chunk)) => {
                stdout().write_all(chunk.bytes())?;
                stdout().flush()?;
            }
            Ok(None) => return Ok(code(running.exit().context("the shell has no end")?)),
            Err(CommandError::ConnectionLost { may_still_run: Some(_), cause, .. }) => {
                eprint!("\r\nsandbar: the connection was lost ({cause}); trying to get it back\r\n");
                *running = search(running).await?;
                eprint!("sandbar: connected again; what was said meanwhile is missing\r\n");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Passes new sizes of this terminal on.
async fn pass_on(resized: &mut Signal, sizes: mpsc::Sender<Size>) -> Infallible {
    while resized.recv().await.is_some() && sizes.send(terminal::size()).await.is_ok() {}
    std::future::pending().await
}

/// Types what is typed here, in order, and resizes.
async fn type_in(process: Process, mut sizes: mpsc::Receiver<Size>) {
    let mut keys = stdin::pieces();
    loop {
        let done = tokio::select! {
            Some(size) = sizes.recv() => process.resize(size).await,
            Some(first) = keys.recv() => process.send_stdin(together(first, &mut keys)).await,
            else => return,
        };
        match done {
            // One who types while the connection is lost has lost these keys, and can type on when it is back.
            Ok(())
            | Err(CommandError::Call(_) | CommandError::ConnectionLost { .. } | CommandError::InputRefused { .. }) => {}
            Err(_) => return,
        }
    }
}

/// What was typed meanwhile goes along.
fn together(first: Bytes, keys: &mut mpsc::Receiver<Bytes>) -> Bytes {
    let Ok(second) = keys.try_recv() else { return first };
    let mut all = BytesMut::from(first.as_ref());
    all.extend_from_slice(&second);
    while let Ok(more) = keys.try_recv() {
        all.extend_from_slice(&more);
    }
    all.freeze()
}
