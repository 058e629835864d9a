//! A terminal in the running sandbox of a job.

use bytes::Bytes;
use sdk::{Process, Running, Shell, Size};
use tokio_util::task::TaskTracker;
use workspace::setup::PROJECT_DIRECTORY;

use crate::error::StudioError;
use crate::id::JobId;
use crate::seat::{self, Found};
use crate::studio::Studio;
use crate::view::User;

/// Two halves, so that one task may read while another writes. Dropping the output ends the shell.
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
    /// A shell in the sandbox, which must run.
    ///
    /// # Errors
    /// [`StudioError::Asleep`] while it sleeps, [`StudioError::SandboxExpired`] when it is gone.
    pub async fn terminal(&self, user: &User, id: &JobId, cols: u16, rows: u16) -> Result<Terminal, StudioError> {
        let job = self.own(user, id).await?;
        if job.sandbox_id.is_none() {
            return Err(StudioError::NotFound);
        }
        let sandbox = match seat::look(self.workspaces(), &job.workspace).await {
            Found::Running { sandbox, .. } => sandbox,
            Found::Paused => return Err(StudioError::Asleep),
            Found::Gone => return Err(StudioError::SandboxExpired),
            Found::Unreachable(reason) => return Err(StudioError::unavailable(reason)),
        };
        let shell = Shell::default().cwd(PROJECT_DIRECTORY).no_timeout();
        let running = sandbox.pty().create(Size { cols, rows }, shell).await.map_err(StudioError::unavailable)?;
        let input = TerminalInput { process: running.process() };
        Ok(Terminal { input, output: TerminalOutput { running, tasks: self.inner.tasks.clone() } })
    }
}

impl TerminalInput {
    /// # Errors
    /// The shell or its sandbox is gone.
    pub async fn send(&self, bytes: Bytes) -> Result<(), StudioError> {
        self.process.send_stdin(bytes).await.map_err(StudioError::unavailable)
    }

    /// # Errors
    /// The shell or its sandbox is gone.
    pub async fn resize(&self, cols: u16, rows: u16) -> Result<(), StudioError> {
        self.process.resize(Size { cols, rows }).await.map_err(StudioError::unavailable)
    }
}

impl TerminalOutput {
    /// The next piece; nothing after the shell's end, or the sandbox's. Safe to cancel.
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
            // One that is gone already, or sleeps, needs no end.
            self.tasks.spawn(async move { process.kill().await.is_ok() });
        }
    }
}
