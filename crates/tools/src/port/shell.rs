//! The port of commands and their shells.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use super::PortError;

/// A command line for bash.
#[derive(Debug, Clone)]
pub(crate) struct ShellCall {
    pub(crate) id: String,
    pub(crate) command: String,
    /// For this call only.
    pub(crate) directory: Option<String>,
    pub(crate) background: bool,
    /// Backstop after which the sandbox itself ends the command.
    pub(crate) limit: Duration,
}

/// Output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// `stdout` or `stderr`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Events of a command's shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShellEvent {
    /// The shell runs.
    Started {
        group: u32,
        directory: StartDirectory,
    },
    /// The command runs in the background under this id.
    Task {
        id: String,
        log: String,
    },
    Output(Stream, Bytes),
    Ended(ShellEnd),
}

/// Working directory of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StartDirectory {
    AsAsked,
    /// The previous directory is gone; the command runs in the root.
    Fallback {
        gone: String,
    },
    /// The requested directory does not exist; nothing runs.
    Missing {
        directory: String,
    },
}

/// How a command's shell ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ShellEnd {
    pub(crate) exit_code: i32,
    /// Working directory of the next call.
    pub(crate) directory: Option<String>,
    /// Processes of the command that are still running.
    pub(crate) survivors: Vec<Survivor>,
    /// Background tasks that ended since the last call.
    pub(crate) finished: Vec<FinishedTask>,
}

/// A process that outlived its command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Survivor {
    pub pid: u32,
    pub command: String,
}

/// A background task that ended or was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FinishedTask {
    pub(crate) task: String,
    /// `None` if it did not survive a pause or a change of sandbox.
    pub(crate) exit_code: Option<i32>,
    pub(crate) log: String,
}

/// Runs commands. Working directory and exported variables carry over to the next.
#[async_trait]
pub(crate) trait Shells: Send + Sync {
    async fn start(&self, call: ShellCall) -> Result<Box<dyn Shell>, PortError>;
}

/// A running command. Dropping it leaves the command running.
#[async_trait]
pub(crate) trait Shell: Send + fmt::Debug {
    /// The next event. Cancel-safe. Must not be called after the end.
    async fn next(&mut self) -> Result<ShellEvent, PortError>;
    /// Ends the command and all its processes, with SIGTERM first. Returns the number of processes.
    async fn kill(&mut self, grace: Duration) -> Result<usize, PortError>;
    /// Turns it into a background task whose log begins with `so_far`. Returns its id and log.
    async fn detach(self: Box<Self>, so_far: Bytes) -> Result<(String, String), PortError>;
}
