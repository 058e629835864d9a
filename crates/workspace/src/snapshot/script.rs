//! Our scripts in a sandbox. They run as root where the sandbox allows it, since only root can read everything and say
//! whose it is; else as the sandbox's own user.

use std::time::Duration;

use bytes::Bytes;
use sdk::{CallError, Chunk, Command, CommandError, Exit, Running, Sandbox};

use crate::label;

/// Lists the folders that a snapshot leaves out. Arguments: root, named ones, `--`, certain ones, `--`, likely ones.
pub(super) const EXCLUDES: &str = include_str!("scripts/excludes.sh");
/// Lists them and writes an archive without them. The same arguments, then `--` and files that it leaves out, too.
pub(super) const ARCHIVE: &str = concat!(include_str!("scripts/excludes.sh"), include_str!("scripts/archive.sh"));
/// Unpacks one beside what is there, and says what is there then. Arguments: root, stage, length of the input, length of the list in
/// it, number of files, who inflates.
pub(super) const UNPACK: &str = include_str!("scripts/unpack.sh");
/// Puts it in place. Arguments: root, stage.
pub(super) const SWAP: &str = include_str!("scripts/swap.sh");
/// Removes it. Arguments: root, stage.
pub(super) const DISCARD: &str = include_str!("scripts/discard.sh");

/// How the scripts say what is wrong.
pub(super) const NO_ROOT: i32 = 10;
pub(super) const HALF_RESTORED: i32 = 11;
pub(super) const MOUNTED: i32 = 12;

const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// How long a script may run, and how long it may say nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) whole: Duration,
    pub(super) silence: Duration,
}

/// A script that runs. [`Script::kill`] ends it; dropping it leaves it running until its time is over.
pub(super) struct Script {
    running: Running,
    patience: Patience,
    /// It runs as root.
    pub(super) as_root: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ScriptError {
    #[error(transparent)]
    Command(CommandError),
    #[error("nothing has come from the sandbox for {0:?}")]
    Silent(Duration),
}

/// Whether a command that failed may do better when it is tried again.
pub(super) fn may_pass(error: &CommandError) -> bool {
    match error {
        CommandError::ConnectionLost { .. } => true,
        CommandError::Call(error) => error.is_service_trouble(),
        _ => false,
    }
}

/// Whether it has standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    None,
    Open,
    /// What is sent is gzip; the sandbox inflates it.
    Gzip,
}

impl Script {
    pub(super) async fn start(
        sandbox: &Sandbox,
        text: &str,
        arguments: Vec<String>,
        input: Input,
        patience: Patience,
    ) -> Result<Self, ScriptError> {
        let arguments = ["-c", text, "sandbar"].map(str::to_owned).into_iter().chain(arguments);
        // What programs say is read here, so it must be in one language.
        let command = label::own(Command::exec("/bin/bash", arguments)).env("LC_ALL", "C").cwd("/");
        let command = command.timeout(patience.whole);
        let command = match input {
            Input::None => command,
            Input::Open => command.stdin(),
            Input::Gzip => command.stdin_gzip(),
        };
        let sandbox = sandbox.within(patience.silence);
        let (running, as_root) = match sandbox.commands().start(command.clone().user("root")).await {
            Ok(running) => (running, true),
            Err(
                CommandError::NotStartable { .. }
                | CommandError::Call(CallError::Unauthorized { .. } | CallError::Invalid { .. }),
            ) => (sandbox.commands().start(command).await.map_err(ScriptError::Command)?, false),
            Err(error) => return Err(ScriptError::Command(error)),
        };
        Ok(Self { running, patience, as_root })
    }

    /// For input, while the output is read.
    pub(super) fn process(&self) -> sdk::Process {
        self.running.process()
    }

    /// What it says next; [`None`] when it has ended.
    pub(super) async fn next(&mut self) -> Result<Option<Chunk>, ScriptError> {
        match tokio::time::timeout(self.patience.silence, self.running.next()).await {
            Ok(next) => next.map_err(ScriptError::Command),
            Err(_) => Err(ScriptError::Silent(self.patience.silence)),
        }
    }

    /// How it ended, once there is nothing more to read.
    pub(super) fn exit(&self) -> Exit {
        self.running.exit().cloned().expect("no further chunk means that the end was seen")
    }

    /// Reads it to its end. Standard output goes to `each`.
    pub(super) async fn finish(mut self, mut each: impl FnMut(Bytes)) -> Result<Ended, ScriptError> {
        let mut said = Said::default();
        loop {
            match self.next().await {
                Ok(Some(Chunk::Stderr(bytes))) => said.push(&bytes),
                Ok(Some(chunk)) => each(chunk.bytes().clone()),
                Ok(None) => return Ok(Ended { exit: self.exit(), said }),
                Err(error) => {
                    self.kill().await;
                    return Err(error);
                }
            }
        }
    }

    /// Reads it to its end, on a new connection when the first is lost: what it does must not go on unseen.
    pub(super) async fn finish_surely(mut self) -> Result<Ended, ScriptError> {
        let mut said = Said::default();
        loop {
            match self.next().await {
                Ok(Some(chunk)) => said.push(chunk.bytes()),
                Ok(None) => return Ok(Ended { exit: self.exit(), said }),
                Err(ScriptError::Command(CommandError::ConnectionLost { .. })) => {
                    let exit = self.running.wait_exit().await.map_err(ScriptError::Command)?;
                    return Ok(Ended { exit, said });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends it, as far as that can be done: who calls this has a greater trouble.
    pub(super) async fn kill(&self) {
        if let Ok(Err(error)) = tokio::time::timeout(KILL_DEADLINE, self.running.kill()).await {
            tracing::debug!(%error, "a script in the sandbox could not be ended; its timeout will");
        }
    }
}

/// How a script ended, and what it complained of.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) exit: Exit,
    pub(super) said: Said,
}

/// What a script wrote to its standard error, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Said(Vec<u8>);

impl Said {
    /// A tree with a million complaints is not helped by the last of them.
    const MOST: usize = 8 * 1024 * 1024;
    /// Of it, what an error shows.
    const SHOWN: usize = 10;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = Self::MOST - self.0.len().min(Self::MOST);
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// For an error's message.
    pub(super) fn summary(&self) -> String {
        summary(&self.0)
    }
}

/// The last lines.
pub(super) fn summary(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(Said::SHOWN)..].join("; ")
}
