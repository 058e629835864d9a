//! `sandbar sandbox shell`: a PTY in a sandbox, connected to this program's terminal.

use super::process_options::ProcessOptions;
use super::run::{code, reconnect_lost};
use super::{Session, stdin};
use crate::interrupt::Stops;
use crate::{keep, terminal};
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

/// For killing the shell after a signal ended this program.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

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
    process_options: ProcessOptions,
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
        // Before the shell starts, so that keys typed meanwhile are not echoed twice.
        let raw = terminal::Raw::enter()?;
        let mut running = sandbox.pty().create(terminal::size(), shell).await?;
        let (resizes, wanted) = mpsc::channel(1);
        let mut helpers = JoinSet::new();
        helpers.spawn(forward_input(running.process(), wanted));
        if !self.no_keep_alive {
            helpers.spawn(keep::alive(sandbox.clone()));
        }
        let left = tokio::select! {
            exit = print_output(&mut running) => ShellEnd::Ended(exit),
            never = forward_resizes(&mut resized, resizes) => match never {},
            stop = stops.next() => ShellEnd::Stopped(stop),
        };
        helpers.shutdown().await;
        drop(raw);
        match left {
            ShellEnd::Ended(exit) => Ok(ExitCode::from(exit?)),
            ShellEnd::Stopped(stop) => {
                // As when a terminal is closed. If the call fails, the shell ends with the sandbox.
                let _ = sandbox.within(KILL_TIMEOUT).pty().kill(running.pid()).await;
                Ok(stop.exit())
            }
        }
    }

    fn shell(&self) -> anyhow::Result<sdk::Shell> {
        let mut shell = match self.argv.split_first() {
            Some((program, arguments)) => sdk::Shell::exec(program, arguments),
            None => sdk::Shell::default(),
        };
        // The sandbox's programs need the type of this terminal.
        for name in ["TERM", "COLORTERM"] {
            if let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) {
                shell = shell.env(name, value);
            }
        }
        Ok(self.process_options.apply(shell)?.no_timeout())
    }
}

enum ShellEnd {
    Ended(anyhow::Result<u8>),
    Stopped(crate::interrupt::Stop),
}

/// Prints the shell's output until it ends.
async fn print_output(running: &mut Running) -> anyhow::Result<u8> {
    loop {
        match running.next().await {
            Ok(Some(chunk)) => {
                stdout().write_all(chunk.bytes())?;
                stdout().flush()?;
            }
            Ok(None) => return Ok(code(running.exit().context("the shell has no end")?)),
            Err(CommandError::ConnectionLost { may_still_run: Some(_), cause, .. }) => {
                eprint!("\r\nsandbar: the connection was lost ({cause}); trying to get it back\r\n");
                *running = reconnect_lost(running).await?;
                eprint!("sandbar: connected again; what was said meanwhile is missing\r\n");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends new sizes of this terminal to the channel.
async fn forward_resizes(resized: &mut Signal, sizes: mpsc::Sender<Size>) -> Infallible {
    while resized.recv().await.is_some() && sizes.send(terminal::size()).await.is_ok() {}
    std::future::pending().await
}

/// Forwards keys, in order, and resizes to the shell.
async fn forward_input(process: Process, mut sizes: mpsc::Receiver<Size>) {
    let mut keys = stdin::pieces();
    loop {
        let done = tokio::select! {
            Some(size) = sizes.recv() => process.resize(size).await,
            Some(first) = keys.recv() => process.send_stdin(coalesce(first, &mut keys)).await,
            else => return,
        };
        match done {
            // Keys typed while the connection is lost are dropped; later keys are sent again.
            Ok(())
            | Err(CommandError::Call(_) | CommandError::ConnectionLost { .. } | CommandError::InputRefused { .. }) => {}
            Err(_) => return,
        }
    }
}

/// Joins `first` with all keys that are queued, into one request.
fn coalesce(first: Bytes, keys: &mut mpsc::Receiver<Bytes>) -> Bytes {
    let Ok(second) = keys.try_recv() else { return first };
    let mut all = BytesMut::from(first.as_ref());
    all.extend_from_slice(&second);
    while let Ok(more) = keys.try_recv() {
        all.extend_from_slice(&more);
    }
    all.freeze()
}
