//! Starts a server and waits until it answers; ends one.

use std::time::{Duration, Instant};

use sdk::{Command, Sandbox};
use sha2::{Digest, Sha256};
use tracing::info;

use super::{DevServer, DevServerError, Ready, Start};
use crate::setup::PROJECT_DIRECTORY;
use crate::shell::{self, Ending, run_to_end, script, tail_of};

const START: &str = include_str!("scripts/start.sh");
const SERVE: &str = include_str!("scripts/serve.sh");
/// Carried by the server, in `start.sh` with more after it, and by its installation.
const MARK: &str = "devserver";
/// How `start.sh` answers.
const DIED: i32 = 30;
const NOT_READY: i32 = 31;
const OTHER_RUNS: i32 = 32;

/// What a server says, in the sandbox. Half a megabyte at most; what was before that is in a file with `.1` after its name.
pub const LOG: &str = "/home/user/.sandbar/devserver.log";

/// The script's own time beside the waiting: one question more, and a machine that is busy.
const SCRIPT_GRACE: Duration = Duration::from_secs(60);

/// How long is waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    pub install: Duration,
    /// In whole seconds.
    pub ready: Duration,
}

impl Default for Patience {
    /// A large installation, and a server that compiles everything first.
    fn default() -> Self {
        Self { install: Duration::from_secs(20 * 60), ready: Duration::from_secs(120) }
    }
}

/// Starts the server and returns when it answers. One that answers already is left as it is.
///
/// It runs in a session of its own, with its output in [`LOG`], until it is ended or the sandbox stops. Dropping the future
/// may leave it started, which the next call finds.
///
/// # Errors
/// [`DevServerError::Died`] and [`DevServerError::NotReady`] carry the end of the log, as it is: who shows it hides secrets.
pub async fn start(sandbox: &Sandbox, server: &DevServer, start: Start) -> Result<Ready, DevServerError> {
    start_within(sandbox, server, start, Patience::default()).await
}

/// As [`start`], with other deadlines.
///
/// # Errors
/// As there.
#[tracing::instrument(skip_all, fields(sandbox = %sandbox.id(), port = server.port))]
pub async fn start_within(
    sandbox: &Sandbox,
    server: &DevServer,
    start: Start,
    patience: Patience,
) -> Result<Ready, DevServerError> {
    let begun = Instant::now();
    if let (Start::AfterRestore, Some(install)) = (start, &server.install_command) {
        // It may be at the very files that are to be made, or be an installation that broke off.
        end_leftovers(sandbox).await?;
        run_install(sandbox, install, patience.install).await?;
        info!(took = ?begun.elapsed(), "the project's dependencies are installed");
    }
    let mut output = launch(sandbox, server, patience.ready).await?;
    if output.exit.code == OTHER_RUNS {
        end_leftovers(sandbox).await?;
        output = launch(sandbox, server, patience.ready).await?;
    }
    let said = output.stdout_text();
    let (first, log) = said.split_once('\n').unwrap_or((&said, ""));
    let (command, port, log) = (server.command.clone(), server.port, log.trim_end().to_owned());
    match output.exit.code {
        0 => {
            let ready = Ready { port, took: begun.elapsed(), ran_already: first == "already" };
            info!(took = ?ready.took, ran_already = ready.ran_already, "the dev server answers");
            Ok(ready)
        }
        DIED => Err(DevServerError::Died { command, port, code: first.trim().parse().unwrap_or(-1), log }),
        NOT_READY => Err(DevServerError::NotReady { command, port, after: patience.ready, log }),
        _ => Err(DevServerError::NotStarted { tail: tail_of(&output) }),
    }
}

/// Ends the server that was started here, also before the sandbox was paused, with all it has started and with an
/// installation that broke off. What others have started is left alone.
///
/// # Errors
/// [`DevServerError::NotEnded`] when something resists.
pub async fn end_leftovers(sandbox: &Sandbox) -> Result<(), DevServerError> {
    Ok(shell::end(sandbox, Ending { mark: MARK, ..Ending::default() }).await?)
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
    let command = shell::marked(Command::new(line).cwd(PROJECT_DIRECTORY).timeout(limit), MARK);
    let (exit, tail) = run_to_end(sandbox, command).await?;
    if exit.success() {
        return Ok(());
    }
    Err(DevServerError::Install { command: line.to_owned(), code: exit.code, status: exit.status, tail })
}

/// Another command or another port is another server.
fn digest(server: &DevServer) -> String {
    let digest = Sha256::digest(format!("{}\n{}", server.port, server.command));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
