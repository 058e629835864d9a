//! The server that shows what is being built: found out, started so that it outlives whoever started it, waited for, and
//! ended.
//!
//! Needs nothing in the sandbox but bash and the usual small programs, and nothing of the server but commands and files.

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
pub use start::{LOG, Patience, end_leftovers, start, start_within};

use crate::shell;

/// A server that a project declares: what starts it and how it is seen to run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DevServer {
    /// A line for the login shell, run in the project's directory. It sees its port as `PORT`.
    pub command: String,
    pub port: u16,
    /// Asked for until there is an answer, whatever it says.
    #[serde(default = "root")]
    pub ready_path: String,
    /// Makes what snapshots leave out (`node_modules`, `.venv`). Run after a restore, and only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
}

fn root() -> String {
    "/".to_owned()
}

impl DevServer {
    /// Asked for `/`, with nothing to install.
    pub fn new(command: impl Into<String>, port: u16) -> Self {
        Self { command: command.into(), port, ready_path: root(), install_command: None }
    }
}

/// What is known of the sandbox in which a server is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// All files are there, generated ones included.
    Plain,
    /// The files come from a snapshot: what generates the rest runs first.
    AfterRestore,
}

/// A server that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ready {
    pub port: u16,
    /// How long that took, installation included.
    pub took: Duration,
    /// It was answering before.
    pub ran_already: bool,
}

impl Ready {
    /// Somebody else started it.
    pub(crate) fn found(port: u16) -> Self {
        Self { port, took: Duration::ZERO, ran_already: true }
    }
}

/// Why there is no server that answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevServerError {
    /// The installation ran and failed.
    #[error("`{command}` ended with {status}{}", shell::after_colon(tail))]
    Install { command: String, code: i32, status: String, tail: String },
    /// The server ended before it answered.
    #[error(
        "the dev server `{command}` ended with exit status {code} before it answered on port {port}{}",
        shell::after_colon(log)
    )]
    Died { command: String, port: u16, code: i32, log: String },
    /// It runs and does not answer; it was left running.
    #[error(
        "the dev server `{command}` did not answer on port {port} within {after:?} and was left running{}",
        shell::after_colon(log)
    )]
    NotReady { command: String, port: u16, after: Duration, log: String },
    /// What ran before could not be ended.
    #[error("the dev server that ran before could not be ended: {message}")]
    NotEnded { message: String },
    /// The script that starts it failed by itself.
    #[error("the dev server could not be started in the sandbox{}", shell::after_colon(tail))]
    NotStarted { tail: String },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Sandbox(#[from] CommandError),
}

impl From<shell::EndError> for DevServerError {
    fn from(error: shell::EndError) -> Self {
        match error {
            shell::EndError::StillRunning(message) => Self::NotEnded { message },
            shell::EndError::Command(error) => Self::Sandbox(error),
        }
    }
}
