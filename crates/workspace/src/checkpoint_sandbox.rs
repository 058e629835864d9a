//! The sandboxes of the E2B client, as checkpoints need them.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use checkpoint::port::{
    CheckpointSandbox, FailureKind, SandboxFailure, ScriptChunk, ScriptCommand, ScriptControl, ScriptExit, ScriptInput,
    ScriptOutput, StartedScript,
};
use sdk::{CallError, Chunk, Command, CommandError, Process, Running, Sandbox, SandboxId, label};
use text::error_chain;
use tracing::debug;

/// A sandbox whose files are saved and restored. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClientSandbox(pub Sandbox);

#[async_trait]
impl CheckpointSandbox for ClientSandbox {
    fn id(&self) -> &SandboxId {
        self.0.id()
    }

    async fn disk_bytes(&self) -> Option<u64> {
        match self.0.info().await {
            Ok(detail) => Some(u64::from(detail.listed.disk_size_mb) << 20).filter(|bytes| *bytes > 0),
            Err(error) => {
                debug!(error = %error_chain(&error), "disk size of the sandbox unknown");
                None
            }
        }
    }

    /// A server that cannot be asked is assumed to be plain E2B.
    async fn inflates_input(&self) -> bool {
        match self.0.client().capabilities().await {
            Ok(found) => found.is_some_and(|found| found.capabilities.contains_key("stdinEncodings")),
            Err(error) => {
                debug!(error = %error_chain(&error), "capabilities of the server unknown, assuming plain E2B");
                false
            }
        }
    }

    async fn start(&self, script: ScriptCommand<'_>) -> Result<StartedScript, SandboxFailure> {
        let ScriptCommand { text, arguments, input, timeout, answer_timeout } = script;
        let arguments = ["-c", text, "sandbar"].map(str::to_owned).into_iter().chain(arguments);
        // Messages of programs are parsed, so their locale is fixed.
        let command = label::tag_internal(Command::exec("/bin/bash", arguments)).env("LC_ALL", "C").cwd("/");
        let command = command.timeout(timeout);
        let command = match input {
            ScriptInput::None => command,
            ScriptInput::Open => command.stdin(),
            ScriptInput::Gzip => command.stdin_gzip(),
        };
        let sandbox = self.0.within(answer_timeout);
        let (running, as_root) = match sandbox.commands().start(command.clone().user("root")).await {
            Ok(running) => (running, true),
            Err(
                CommandError::NotStartable { .. }
                | CommandError::Call(CallError::Unauthorized { .. } | CallError::Invalid { .. }),
            ) => (sandbox.commands().start(command).await.map_err(to_failure)?, false),
            Err(error) => return Err(to_failure(error)),
        };
        let control = Arc::new(ClientControl(running.process()));
        Ok(StartedScript { output: Box::new(ClientOutput(running)), control, as_root })
    }
}

struct ClientOutput(Running);

#[async_trait]
impl ScriptOutput for ClientOutput {
    async fn next(&mut self) -> Result<Option<ScriptChunk>, SandboxFailure> {
        let chunk = self.0.next().await.map_err(to_failure)?;
        Ok(chunk.map(|chunk| match chunk {
            Chunk::Stderr(bytes) => ScriptChunk::Stderr(bytes),
            Chunk::Stdout(bytes) | Chunk::Pty(bytes) => ScriptChunk::Stdout(bytes),
        }))
    }

    async fn exit(&mut self) -> Result<ScriptExit, SandboxFailure> {
        let exit = match self.0.exit() {
            Some(exit) => exit.clone(),
            None => self.0.wait_exit().await.map_err(to_failure)?,
        };
        Ok(ScriptExit { success: exit.success(), code: exit.code, status: exit.status })
    }
}

struct ClientControl(Process);

#[async_trait]
impl ScriptControl for ClientControl {
    async fn send(&self, input: Bytes) -> Result<bool, SandboxFailure> {
        accept_input(self.0.send_stdin(input).await)
    }

    async fn close(&self) -> Result<(), SandboxFailure> {
        accept_input(self.0.close_stdin().await).map(drop)
    }

    async fn kill(&self) -> Result<(), SandboxFailure> {
        self.0.kill().await.map(drop).map_err(to_failure)
    }
}

/// Whether the process accepted the input; an exited one accepts no more.
fn accept_input(sent: Result<(), CommandError>) -> Result<bool, SandboxFailure> {
    match sent {
        Ok(()) => Ok(true),
        Err(CommandError::NotFound { .. } | CommandError::InputRefused { .. }) => Ok(false),
        Err(error) => Err(to_failure(error)),
    }
}

pub(crate) fn to_failure(error: CommandError) -> SandboxFailure {
    let kind = match &error {
        CommandError::ConnectionLost { .. } => FailureKind::ConnectionLost,
        CommandError::Call(error) if error.is_service_trouble() => FailureKind::Unavailable,
        _ => FailureKind::Permanent,
    };
    SandboxFailure::new(kind, error)
}
