//! The dev server of a project: detected, started detached from the caller, polled until it
//! answers, and stopped.
//!
//! The sandbox needs only bash and coreutils; the sandbox server needs only commands and files.

mod choose;
mod detect;
mod node;
mod ports;
mod python;
mod start;

use std::time::Duration;

use sdk::{CommandError, FileError};
use serde::{Deserialize, Serialize};

pub use choose::{Choice, choose};
pub use detect::detect;
pub use start::{LOG, StartTimeouts, start, start_within, stop_leftovers};

use crate::shell;

/// A declared dev server: its command and its readiness probe.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DevServer {
    /// A line for the login shell, run in the project's directory with `PORT` set.
    pub command: String,
    pub port: u16,
    /// The path that the readiness probe requests; any HTTP response counts.
    #[serde(default = "root")]
    pub ready_path: String,
    /// Generates what checkpoints exclude (`node_modules`, `.venv`). Runs only after a restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
}

fn root() -> String {
    "/".to_owned()
}

impl DevServer {
    /// A server that is ready when it answers `/`, without an install command.
    pub fn new(command: impl Into<String>, port: u16) -> Self {
        Self { command: command.into(), port, ready_path: root(), install_command: None }
    }
}

/// The state of the sandbox in which a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// All files are present, including generated ones.
    Plain,
    /// The files come from a checkpoint, so the install command runs first.
    AfterRestore,
}

/// A dev server that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ready {
    pub port: u16,
    /// How long the start took, including installation.
    pub took: Duration,
    /// Whether it answered before the start.
    pub ran_already: bool,
}

impl Ready {
    /// A server that another process started.
    pub(crate) fn already_running(port: u16) -> Self {
        Self { port, took: Duration::ZERO, ran_already: true }
    }
}

/// Why no dev server answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevServerError {
    /// The install command failed.
    #[error("`{command}` ended with {status}{}", shell::format_tail(tail))]
    Install { command: String, code: i32, status: String, tail: String },
    /// The server exited before it answered.
    #[error(
        "the dev server `{command}` ended with exit status {code} before it answered on port {port}{}",
        shell::format_tail(log)
    )]
    Died { command: String, port: u16, code: i32, log: String },
    /// The server runs but does not answer; it is left running.
    #[error(
        "the dev server `{command}` did not answer on port {port} within {after:?} and was left running{}",
        shell::format_tail(log)
    )]
    NotReady { command: String, port: u16, after: Duration, log: String },
    /// A previous server could not be stopped.
    #[error("the dev server that ran before could not be ended: {message}")]
    NotEnded { message: String },
    /// The start script itself failed.
    #[error("the dev server could not be started in the sandbox{}", shell::format_tail(tail))]
    NotStarted { tail: String },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Sandbox(#[from] CommandError),
}

impl From<shell::KillError> for DevServerError {
    fn from(error: shell::KillError) -> Self {
        match error {
            shell::KillError::StillRunning(message) => Self::NotEnded { message },
            shell::KillError::Command(error) => Self::Sandbox(error),
        }
    }
}
