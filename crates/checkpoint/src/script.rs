//! The scripts that save and restore, and how they run in a sandbox.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::port::{
    CheckpointSandbox, FailureKind, SandboxFailure, ScriptChunk, ScriptCommand, ScriptControl, ScriptExit, ScriptInput,
    StartedScript,
};

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
    started: StartedScript,
    timeouts: ScriptTimeouts,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxScriptError {
    #[error(transparent)]
    Call(SandboxFailure),
    #[error("nothing has come from the sandbox for {0:?}")]
    Silent(Duration),
}

/// Whether a retry of a failed call may succeed.
pub(crate) fn is_retryable(error: &SandboxFailure) -> bool {
    error.kind != FailureKind::Permanent
}

impl SandboxScript {
    pub(crate) async fn start(
        sandbox: &dyn CheckpointSandbox,
        text: &str,
        arguments: Vec<String>,
        input: ScriptInput,
        timeouts: ScriptTimeouts,
    ) -> Result<Self, SandboxScriptError> {
        let ScriptTimeouts { total: timeout, silence: answer_timeout } = timeouts;
        let command = ScriptCommand { text, arguments, input, timeout, answer_timeout };
        let started = sandbox.start(command).await.map_err(SandboxScriptError::Call)?;
        Ok(Self { started, timeouts })
    }

    /// Whether it runs as root.
    pub(crate) fn as_root(&self) -> bool {
        self.started.as_root
    }

    /// To send input while the output is read.
    pub(crate) fn control(&self) -> Arc<dyn ScriptControl> {
        Arc::clone(&self.started.control)
    }

    /// The next chunk of output; [`None`] at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<ScriptChunk>, SandboxScriptError> {
        match tokio::time::timeout(self.timeouts.silence, self.started.output.next()).await {
            Ok(next) => next.map_err(SandboxScriptError::Call),
            Err(_) => Err(SandboxScriptError::Silent(self.timeouts.silence)),
        }
    }

    /// How it exited, once there is no more output.
    pub(crate) async fn exit(&mut self) -> Result<ScriptExit, SandboxScriptError> {
        self.started.output.exit().await.map_err(SandboxScriptError::Call)
    }

    /// Reads the output to its end. Standard output goes to `each`.
    pub(crate) async fn finish(mut self, mut each: impl FnMut(Bytes)) -> Result<ScriptReport, SandboxScriptError> {
        let mut stderr = Stderr::default();
        loop {
            match self.next().await {
                Ok(Some(ScriptChunk::Stderr(bytes))) => stderr.push(&bytes),
                Ok(Some(ScriptChunk::Stdout(bytes))) => each(bytes),
                Ok(None) => return Ok(ScriptReport { exit: self.exit().await?, stderr }),
                Err(error) => {
                    self.kill().await;
                    return Err(error);
                }
            }
        }
    }

    /// Reads the output to its end, and learns the exit even when the connection is lost: the
    /// caller must know the result.
    pub(crate) async fn finish_reconnecting(mut self) -> Result<ScriptReport, SandboxScriptError> {
        let mut stderr = Stderr::default();
        loop {
            match self.next().await {
                Ok(Some(ScriptChunk::Stdout(bytes) | ScriptChunk::Stderr(bytes))) => stderr.push(&bytes),
                Err(SandboxScriptError::Call(error)) if error.kind != FailureKind::ConnectionLost => {
                    return Err(SandboxScriptError::Call(error));
                }
                Ok(None) | Err(SandboxScriptError::Call(_)) => {
                    return Ok(ScriptReport { exit: self.exit().await?, stderr });
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Kills it, best effort: the caller already has an error to report.
    pub(crate) async fn kill(&self) {
        if let Ok(Err(error)) = tokio::time::timeout(KILL_DEADLINE, self.started.control.kill()).await {
            tracing::debug!(%error, "a script in the sandbox could not be ended; its timeout will");
        }
    }
}

/// The exit and stderr of a script.
#[derive(Debug)]
pub(crate) struct ScriptReport {
    pub(crate) exit: ScriptExit,
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
