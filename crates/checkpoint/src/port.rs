//! What checkpoints need of a sandbox: it runs scripts, with streamed input and output.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::SandboxId;

/// A sandbox whose files are saved and restored.
#[async_trait]
pub trait CheckpointSandbox: Send + Sync {
    fn id(&self) -> &SandboxId;

    /// The size of its disk; [`None`] when unknown.
    async fn disk_bytes(&self) -> Option<u64>;

    /// Whether it inflates gzip input of a process, which is twice as fast as `gzip`.
    async fn inflates_input(&self) -> bool;

    /// Runs a script with bash: as root where the sandbox allows it, since only root can read all
    /// files and their owners, else as the sandbox's user.
    async fn start(&self, script: ScriptCommand<'_>) -> Result<StartedScript, SandboxFailure>;
}

/// A script and how it is run.
#[derive(Debug)]
pub struct ScriptCommand<'s> {
    pub text: &'s str,
    pub arguments: Vec<String>,
    pub input: ScriptInput,
    /// When the sandbox ends the script.
    pub timeout: Duration,
    /// How long the sandbox may take to answer a call.
    pub answer_timeout: Duration,
}

/// The standard input of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptInput {
    None,
    Open,
    /// The input is gzip; the sandbox inflates it.
    Gzip,
}

/// A running script. Dropping it leaves it running until its timeout.
pub struct StartedScript {
    pub output: Box<dyn ScriptOutput>,
    /// To send input while the output is read.
    pub control: Arc<dyn ScriptControl>,
    pub as_root: bool,
}

/// The output of a script.
#[async_trait]
pub trait ScriptOutput: Send + Sync {
    /// The next chunk; [`None`] at the end.
    async fn next(&mut self) -> Result<Option<ScriptChunk>, SandboxFailure>;

    /// How the script exited. Waits for it, also after its output was lost with a connection.
    async fn exit(&mut self) -> Result<ScriptExit, SandboxFailure>;
}

/// The input and the end of a script.
#[async_trait]
pub trait ScriptControl: Send + Sync {
    /// Returns false when the script takes no more input.
    async fn send(&self, input: Bytes) -> Result<bool, SandboxFailure>;

    /// Ends the input.
    async fn close(&self) -> Result<(), SandboxFailure>;

    async fn kill(&self) -> Result<(), SandboxFailure>;
}

/// A chunk of output.
#[derive(Debug)]
pub enum ScriptChunk {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// How a script exited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptExit {
    /// Whether it ended by itself with code 0.
    pub success: bool,
    pub code: i32,
    /// Readable.
    pub status: String,
}

/// A call of a sandbox failed. Shows the error of the call.
#[derive(Debug)]
pub struct SandboxFailure {
    pub kind: FailureKind,
    source: Box<dyn Error + Send + Sync>,
}

/// Whether a retry may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// It may; what the call did is unknown.
    ConnectionLost,
    /// It may.
    Unavailable,
    /// It would fail again.
    Permanent,
}

impl SandboxFailure {
    pub fn new(kind: FailureKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, source: source.into() }
    }
}

impl fmt::Display for SandboxFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for SandboxFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}
