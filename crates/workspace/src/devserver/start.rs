//! Starts a dev server, waits until it answers, and stops it.

use std::time::{Duration, Instant};

use sdk::{Command, Sandbox};
use sha2::{Digest, Sha256};
use tracing::info;

use super::{DevServer, DevServerError, Ready, Start};
use crate::setup::PROJECT_DIRECTORY;
use crate::shell::{self, KillFilter, run_to_end, script, tail_of};

const START: &str = include_str!("scripts/start.sh");
const SERVE: &str = include_str!("scripts/serve.sh");
/// The task mark of the server (`start.sh` appends its digest) and of its installation.
const MARK: &str = "devserver";
/// The exit codes of `start.sh`.
const DIED: i32 = 30;
const NOT_READY: i32 = 31;
const OTHER_RUNS: i32 = 32;

/// The log of the dev server in the sandbox, at most half a megabyte. The rotated log has the
/// suffix `.1`.
pub const LOG: &str = "/home/user/.sandbar/devserver.log";

/// Added to the deadline of the script for its last probe and a busy machine.
const SCRIPT_GRACE: Duration = Duration::from_secs(60);

/// Timeouts of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartTimeouts {
    pub install: Duration,
    /// Rounded down to whole seconds.
    pub ready: Duration,
}

impl Default for StartTimeouts {
    /// Allows for a large installation and a server that compiles everything first.
    fn default() -> Self {
        Self { install: Duration::from_secs(20 * 60), ready: Duration::from_secs(120) }
    }
}

/// Starts the server and returns when it answers. A server that already answers is left running.
///
/// The server runs in a session of its own, with its output in [`LOG`], until it is stopped or the
/// sandbox stops. Dropping the future may leave it running; the next call finds it.
///
/// # Errors
/// [`DevServerError::Died`] and [`DevServerError::NotReady`] carry the unmasked end of the log: the
/// caller masks secrets before it shows them.
pub async fn start(sandbox: &Sandbox, server: &DevServer, start: Start) -> Result<Ready, DevServerError> {
    start_within(sandbox, server, start, StartTimeouts::default()).await
}

/// Like [`start`], with other timeouts.
///
/// # Errors
/// Those of [`start`].
#[tracing::instrument(skip_all, fields(sandbox = %sandbox.id(), port = server.port))]
pub async fn start_within(
    sandbox: &Sandbox,
    server: &DevServer,
    start: Start,
    timeouts: StartTimeouts,
) -> Result<Ready, DevServerError> {
    let begun = Instant::now();
    if let (Start::AfterRestore, Some(install)) = (start, &server.install_command) {
        // A running server may use the files that the installation replaces; an interrupted
        // installation may still run.
        stop_leftovers(sandbox).await?;
        run_install(sandbox, install, timeouts.install).await?;
        info!(took = ?begun.elapsed(), "the project's dependencies are installed");
    }
    let mut output = launch(sandbox, server, timeouts.ready).await?;
    if output.exit.code == OTHER_RUNS {
        stop_leftovers(sandbox).await?;
        output = launch(sandbox, server, timeouts.ready).await?;
    }
    let text = output.stdout_text();
    let (first, log) = text.split_once('\n').unwrap_or((&text, ""));
    let (command, port, log) = (server.command.clone(), server.port, log.trim_end().to_owned());
    match output.exit.code {
        0 => {
            let ready = Ready { port, took: begun.elapsed(), ran_already: first == "already" };
            info!(took = ?ready.took, ran_already = ready.ran_already, "the dev server answers");
            Ok(ready)
        }
        DIED => Err(DevServerError::Died { command, port, code: first.trim().parse().unwrap_or(-1), log }),
        NOT_READY => Err(DevServerError::NotReady { command, port, after: timeouts.ready, log }),
        _ => Err(DevServerError::NotStarted { tail: tail_of(&output) }),
    }
}

/// Stops the server that this module started, also one from before a pause, with its children and
/// with an interrupted installation. Servers that other processes started are left running.
///
/// # Errors
/// [`DevServerError::NotEnded`] when a process survives its signals, [`DevServerError::Sandbox`]
/// when the sandbox cannot be reached.
pub async fn stop_leftovers(sandbox: &Sandbox) -> Result<(), DevServerError> {
    Ok(shell::kill_marked(sandbox, KillFilter { mark: MARK, ..KillFilter::default() }).await?)
}

async fn launch(sandbox: &Sandbox, server: &DevServer, ready: Duration) -> Result<sdk::Output, DevServerError> {
    let host = sandbox.host(server.port);
    let host = host.split(':').next().unwrap_or_default();
    let path =
        if server.ready_path.starts_with('/') { server.ready_path.clone() } else { format!("/{}", server.ready_path) };
    let (port, seconds, digest) = (server.port.to_string(), ready.as_secs().max(1).to_string(), digest(server));
    let arguments =
        [PROJECT_DIRECTORY, &port, &path, &seconds, &digest, LOG, host, SERVE, &server.command].map(str::to_owned);
    let command = script(START, arguments).timeout(ready + SCRIPT_GRACE);
    Ok(sandbox.commands().run(command).await?)
}

async fn run_install(sandbox: &Sandbox, line: &str, limit: Duration) -> Result<(), DevServerError> {
    let command = shell::mark(Command::new(line).cwd(PROJECT_DIRECTORY).timeout(limit), MARK);
    let (exit, tail) = run_to_end(sandbox, command).await?;
    if exit.success() {
        return Ok(());
    }
    Err(DevServerError::Install { command: line.to_owned(), code: exit.code, status: exit.status, tail })
}

/// Identifies a server by its command and port.
fn digest(server: &DevServer) -> String {
    let digest = Sha256::digest(format!("{}\n{}", server.port, server.command));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
