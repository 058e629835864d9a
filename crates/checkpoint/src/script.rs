//! Runs Sandbar's scripts in a sandbox. They run as root where the sandbox allows it, since only
//! root can read all files and their owners; else as the sandbox's user.

use std::time::Duration;

use bytes::Bytes;
use sdk::{CallError, Chunk, Command, CommandError, Exit, Running, Sandbox};

use sdk::label;

/// Lists the folders that a checkpoint excludes. Arguments: root, named ones, `--`, certain ones,
/// `--`, likely ones.
pub(crate) const EXCLUDES: &str = include_str!("scripts/excludes.sh");
/// Lists them and writes an archive without them. The same arguments, then `--` and further files
/// to exclude.
pub(crate) const ARCHIVE: &str = concat!(include_str!("scripts/excludes.sh"), include_str!("scripts/archive.sh"));
/// Unpacks an archive next to the current tree, and lists the result. Arguments: root, stage,
/// length of the input, length of the list in it, number of files, who inflates.
pub(crate) const UNPACK: &str = include_str!("scripts/unpack.sh");
/// Moves the unpacked files into place. Arguments: root, stage.
pub(crate) const SWAP: &str = include_str!("scripts/swap.sh");
/// Removes the unpacked files. Arguments: root, stage.
pub(crate) const DISCARD: &str = include_str!("scripts/discard.sh");

/// The exit codes of the scripts.
pub(crate) const NO_ROOT: i32 = 10;
pub(crate) const HALF_RESTORED: i32 = 11;
pub(crate) const MOUNTED: i32 = 12;

const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// How long a script may run, and how long without output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptTimeouts {
    pub(crate) total: Duration,
    pub(crate) silence: Duration,
}

/// A running script. [`SandboxScript::kill`] ends it; dropping it leaves it running until its
/// timeout.
pub(crate) struct SandboxScript {
    running: Running,
    timeouts: ScriptTimeouts,
    /// Whether it runs as root.
    pub(crate) as_root: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxScriptError {
    #[error(transparent)]
    Command(CommandError),
    #[error("nothing has come from the sandbox for {0:?}")]
    Silent(Duration),
}

/// Whether a retry of a failed command may succeed.
pub(crate) fn is_retryable(error: &CommandError) -> bool {
    match error {
        CommandError::ConnectionLost { .. } => true,
        CommandError::Call(error) => error.is_service_trouble(),
        _ => false,
    }
}

/// The standard input of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptInput {
    None,
    Open,
    /// The input is gzip; the sandbox inflates it.
    Gzip,
}

impl SandboxScript {
    pub(crate) async fn start(
        sandbox: &Sandbox,
        text: &str,
        arguments: Vec<String>,
        input: ScriptInput,
        timeouts: ScriptTimeouts,
    ) -> Result<Self, SandboxScriptError> {
        let arguments = ["-c", text, "sandbar"].map(str::to_owned).into_iter().chain(arguments);
        // This module parses messages of programs, so their locale is fixed.
        let command = label::tag_internal(Command::exec("/bin/bash", arguments)).env("LC_ALL", "C").cwd("/");
        let command = command.timeout(timeouts.total);
        let command = match input {
            ScriptInput::None => command,
            ScriptInput::Open => command.stdin(),
            ScriptInput::Gzip => command.stdin_gzip(),
        };
        let sandbox = sandbox.within(timeouts.silence);
        let (running, as_root) = match sandbox.commands().start(command.clone().user("root")).await {
            Ok(running) => (running, true),
            Err(
                CommandError::NotStartable { .. }
                | CommandError::Call(CallError::Unauthorized { .. } | CallError::Invalid { .. }),
            ) => (sandbox.commands().start(command).await.map_err(SandboxScriptError::Command)?, false),
            Err(error) => return Err(SandboxScriptError::Command(error)),
        };
        Ok(Self { running, timeouts, as_root })
    }

    /// The process, to send input while the output is read.
    pub(crate) fn process(&self) -> sdk::Process {
        self.running.process()
    }

    /// The next chunk of output; [`None`] at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>, SandboxScriptError> {
        match tokio::time::timeout(self.timeouts.silence, self.running.next()).await {
            Ok(next) => next.map_err(SandboxScriptError::Command),
            Err(_) => Err(SandboxScriptError::Silent(self.timeouts.silence)),
        }
    }

    /// The exit status, once there is no more output.
    pub(crate) fn exit(&self) -> Exit {
        self.running.exit().cloned().expect("no further chunk means that the end was seen")
    }

    /// Reads the output to its end. Standard output goes to `each`.
    pub(crate) async fn finish(mut self, mut each: impl FnMut(Bytes)) -> Result<ScriptExit, SandboxScriptError> {
        let mut stderr = Stderr::default();
        loop {
            match self.next().await {
                Ok(Some(Chunk::Stderr(bytes))) => stderr.push(&bytes),
                Ok(Some(chunk)) => each(chunk.bytes().clone()),
                Ok(None) => return Ok(ScriptExit { exit: self.exit(), stderr }),
                Err(error) => {
                    self.kill().await;
                    return Err(error);
                }
            }
        }
    }

    /// Reads the output to its end, reconnecting when the connection is lost: the caller must know
    /// the result.
    pub(crate) async fn finish_reconnecting(mut self) -> Result<ScriptExit, SandboxScriptError> {
        let mut stderr = Stderr::default();
        loop {
            match self.next().await {
                Ok(Some(chunk)) => stderr.push(chunk.bytes()),
                Ok(None) => return Ok(ScriptExit { exit: self.exit(), stderr }),
                Err(SandboxScriptError::Command(CommandError::ConnectionLost { .. })) => {
                    let exit = self.running.wait_exit().await.map_err(SandboxScriptError::Command)?;
                    return Ok(ScriptExit { exit, stderr });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Kills it, best effort: the caller already has an error to report.
    pub(crate) async fn kill(&self) {
        if let Ok(Err(error)) = tokio::time::timeout(KILL_DEADLINE, self.running.kill()).await {
            tracing::debug!(%error, "a script in the sandbox could not be ended; its timeout will");
        }
    }
}

/// The exit status and stderr of a script.
#[derive(Debug)]
pub(crate) struct ScriptExit {
    pub(crate) exit: Exit,
    pub(crate) stderr: Stderr,
}

/// The stderr of a script, up to a limit.
#[derive(Debug, Default)]
pub(crate) struct Stderr(Vec<u8>);

impl Stderr {
    /// Further warnings add nothing.
    const MOST: usize = 8 * 1024 * 1024;
    /// The most lines in an error.
    const SHOWN: usize = 10;

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let left = Self::MOST - self.0.len().min(Self::MOST);
        self.0.extend_from_slice(&bytes[..bytes.len().min(left)]);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// For an error message.
    pub(crate) fn summary(&self) -> String {
        summary(&self.0)
    }
}

/// The last lines.
pub(crate) fn summary(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(Stderr::SHOWN)..].join("; ")
}
