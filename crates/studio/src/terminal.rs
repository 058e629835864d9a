//! Terminals in the running sandbox of a job.

use bytes::Bytes;
use sdk::{Process, Running, Shell, Size};
use tokio_util::task::TaskTracker;
use workspace::setup::PROJECT_DIRECTORY;

use crate::error::StudioError;
use crate::id::JobId;
use crate::probe::{self, SandboxStatus};
use crate::studio::Studio;
use crate::view::User;

/// Split into two halves, so that one task reads while another writes. Dropping the output kills
/// the shell.
#[derive(Debug)]
pub struct Terminal {
    pub input: TerminalInput,
    pub output: TerminalOutput,
}

#[derive(Debug, Clone)]
pub struct TerminalInput {
    process: Process,
}

#[derive(Debug)]
pub struct TerminalOutput {
    running: Running,
    tasks: TaskTracker,
}

impl Studio {
    /// Starts a shell in the sandbox, which must run.
    ///
    /// # Errors
    /// [`StudioError::SandboxPaused`], [`StudioError::SandboxExpired`] when the sandbox is gone, or
    /// [`StudioError::Unavailable`].
    pub async fn terminal(&self, user: &User, id: &JobId, cols: u16, rows: u16) -> Result<Terminal, StudioError> {
        let job = self.find_own_job(user, id).await?;
        if job.sandbox_id.is_none() {
            return Err(StudioError::NotFound);
        }
        let sandbox = match probe::inspect_sandbox(self.workspaces(), &job.workspace).await {
            SandboxStatus::Running { sandbox, .. } => sandbox,
            SandboxStatus::Paused => return Err(StudioError::SandboxPaused),
            SandboxStatus::Gone => return Err(StudioError::SandboxExpired),
            SandboxStatus::Unreachable(reason) => return Err(StudioError::unavailable(reason)),
        };
        let shell = Shell::default().cwd(PROJECT_DIRECTORY).no_timeout();
        let running = sandbox.pty().create(Size { cols, rows }, shell).await.map_err(StudioError::unavailable)?;
        let input = TerminalInput { process: running.process() };
        Ok(Terminal { input, output: TerminalOutput { running, tasks: self.inner.tasks.clone() } })
    }
}

impl TerminalInput {
    /// Writes to the shell's terminal.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the shell or its sandbox is gone.
    pub async fn send(&self, bytes: Bytes) -> Result<(), StudioError> {
        self.process.send_stdin(bytes).await.map_err(StudioError::unavailable)
    }

    /// Resizes the terminal.
    ///
    /// # Errors
    /// [`StudioError::Unavailable`] when the shell or its sandbox is gone.
    pub async fn resize(&self, cols: u16, rows: u16) -> Result<(), StudioError> {
        self.process.resize(Size { cols, rows }).await.map_err(StudioError::unavailable)
    }
}

impl TerminalOutput {
    /// The next output; none after the shell or the sandbox has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        match self.running.next().await {
            Ok(chunk) => chunk.map(|chunk| chunk.bytes().clone()),
            Err(_) => None,
        }
    }
}

impl Drop for TerminalOutput {
    fn drop(&mut self) {
        if self.running.exit().is_none() {
            let process = self.running.process();
            // The call fails when the sandbox is gone or paused, and then the shell needs no kill.
            self.tasks.spawn(async move { process.kill().await.is_ok() });
        }
    }
}
