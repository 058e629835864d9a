//! What the tools need from a sandbox, in their own words. One implementation talks to a real sandbox, one lives in
//! memory; both pass the same contract tests.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::paths::Places;
use crate::result::ToolResult;
use crate::search::{Counted, Find, Found, MatchedFile, Search};

/// Where calls find a machine.
#[async_trait]
pub(crate) trait Ground: Send + Sync {
    /// Waits until there is one that can be worked with.
    async fn enter(&self) -> Result<Box<dyn Visit>, PortError>;
}

/// A machine for one call.
#[async_trait]
pub(crate) trait Visit: Send + Sync {
    fn machine(&self) -> &dyn Machine;
    /// Ends it, and adds to the result what happened to the machine meanwhile.
    async fn leave(self: Box<Self>, result: &mut ToolResult);
}

/// Everything the tools need, from one sandbox.
pub(crate) trait Machine: Files + Memory + Shells + Searches {}
impl<M: Files + Memory + Shells + Searches> Machine for M {}

/// Why a sandbox could not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    #[error("it does not exist")]
    NotFound,
    #[error("it is a directory")]
    IsDirectory,
    #[error("a part of the path is not a directory")]
    NotADirectory,
    #[error("permission denied")]
    PermissionDenied,
    #[error("it is on a read-only file system")]
    ReadOnly,
    #[error("the sandbox's disk is full")]
    NoSpace,
    /// It is not what it was when it was looked at.
    #[error("it changed meanwhile")]
    Conflict,
    /// It did not answer in time.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// The program could not be started.
    #[error("{0}")]
    NotStartable(String),
    /// The sandbox or the way to it is gone. The text says whether something may have happened.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Other(String),
}

/// What a path leads to, links followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// A device, pipe or socket.
    Other,
}

/// What is known of a file without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Where links lead to in the end.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// Time of the last change, in nanoseconds.
    pub(crate) modified: i128,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Whether a file of the tools' own user with that mode is the same: nothing to restore after a replacement.
    pub(crate) ordinary: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) is_directory: bool,
}

/// What was found at a path that somebody wants to know whole.
#[derive(Debug, Clone)]
pub(crate) enum Fetched {
    Directory,
    /// A device, pipe or socket.
    Special,
    /// Longer than was asked for, so nothing of it was fetched.
    Large {
        size: u64,
    },
    File(Fetch),
}

/// A file with its content.
#[derive(Debug, Clone)]
pub(crate) struct Fetch {
    pub(crate) bytes: Bytes,
    /// Digest of the bytes.
    pub(crate) sha256: String,
    /// What was known before it was read, where that had to be asked for.
    pub(crate) stat: Option<Stat>,
}

/// Lines of a file that is too large to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// From 1; negative counts from the end.
    pub(crate) first: i64,
    pub(crate) count: usize,
    /// Counting reads the whole file.
    pub(crate) count_all: bool,
}

/// What was in a window.
#[derive(Debug, Clone)]
pub(crate) struct Windowed {
    pub(crate) bytes: Bytes,
    pub(crate) total_lines: Option<u64>,
}

/// What a file must still be when it is replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Basis<'a> {
    Absent,
    Was { stat: Option<&'a Stat>, sha256: &'a str },
}

impl<'a> Basis<'a> {
    pub(crate) fn of(fetch: &'a Fetch) -> Self {
        Self::Was { stat: fetch.stat.as_ref(), sha256: &fetch.sha256 }
    }
}

/// Files, by absolute paths.
#[async_trait]
pub(crate) trait Files: Send + Sync {
    async fn stat(&self, path: &str) -> Result<Stat, PortError>;
    /// What is at a path, with its content unless it is longer than `most`.
    async fn fetch(&self, path: &str, most: u64) -> Result<Fetched, PortError>;
    /// At most `most` bytes from the start.
    async fn read(&self, path: &str, most: usize) -> Result<Bytes, PortError>;
    /// Reads lines inside the sandbox.
    async fn window(&self, path: &str, window: Window) -> Result<Windowed, PortError>;
    async fn list(&self, path: &str) -> Result<Vec<Listed>, PortError>;
    /// Files of that name below a directory, the first few.
    async fn named(&self, directory: &str, name: &str) -> Result<Vec<String>, PortError>;
    /// Replaces or makes a file whole or not at all, with its parents, and keeps mode and owner of the one before. True
    /// when it had to be written in place.
    async fn replace(&self, path: &str, bytes: Bytes, basis: Basis<'_>) -> Result<bool, PortError>;
}

/// What a session remembers between calls, also between processes. It lives in the sandbox.
#[async_trait]
pub(crate) trait Memory: Send + Sync {
    /// Current directory and home.
    async fn places(&self) -> Result<Places, PortError>;
    async fn recall(&self, key: &str) -> Result<Option<Bytes>, PortError>;
    async fn remember(&self, key: &str, note: Bytes) -> Result<(), PortError>;
    async fn forget(&self, key: &str) -> Result<(), PortError>;
    /// Forgets the shell's directory and variables.
    async fn forget_shell(&self) -> Result<(), PortError>;
    /// Keeps output that was too long for an answer, and says where.
    async fn keep_output(&self, call: &str, output: Bytes) -> Result<String, PortError>;
    /// Ends background tasks and removes kept output.
    async fn close(&self) -> Result<(), PortError>;
}

/// A command line to be run by bash.
#[derive(Debug, Clone)]
pub(crate) struct ShellCall {
    pub(crate) id: String,
    pub(crate) command: String,
    /// For this call only.
    pub(crate) directory: Option<String>,
    pub(crate) background: bool,
    /// After this the sandbox itself ends the command, if nobody else did.
    pub(crate) limit: Duration,
}

/// Which of its two outputs a command wrote to.
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

/// What a command's shell does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShellEvent {
    /// The shell runs.
    Started {
        group: u32,
        directory: Started,
    },
    /// It runs in the background under this name.
    Task {
        id: String,
        log: String,
    },
    Output(Stream, Bytes),
    Ended(ShellEnd),
}

/// Where a command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Started {
    AsAsked,
    /// The directory of the call before is gone; it runs in the root.
    Fallback {
        gone: String,
    },
    /// The directory for this call does not exist; nothing runs.
    Missing {
        directory: String,
    },
}

/// How a command's shell ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ShellEnd {
    pub(crate) exit_code: i32,
    /// The directory of the next call.
    pub(crate) directory: Option<String>,
    /// Processes of the command that live on.
    pub(crate) survivors: Vec<Survivor>,
    /// Background tasks that ended since the last call.
    pub(crate) finished: Vec<Finished>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Survivor {
    pub(crate) pid: u32,
    pub(crate) command: String,
}

/// A background task that is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) task: String,
    /// Absent when it did not survive a pause or a change of sandbox.
    pub(crate) exit_code: Option<i32>,
    pub(crate) log: String,
}

/// Runs commands. Directory and exported variables carry over to the next.
#[async_trait]
pub(crate) trait Shells: Send + Sync {
    async fn start(&self, call: ShellCall) -> Result<Box<dyn Shell>, PortError>;
}

/// A command that runs. Dropping it leaves the command running.
#[async_trait]
pub(crate) trait Shell: Send + fmt::Debug {
    /// What happens next. Safe to cancel. After the end there is nothing more to ask for.
    async fn next(&mut self) -> Result<ShellEvent, PortError>;
    /// Ends the command and whatever it started, first politely. How many processes there were.
    async fn kill(&mut self, grace: Duration) -> Result<usize, PortError>;
    /// Turns it into a background task whose log begins with `so_far`. Its id and log.
    async fn detach(self: Box<Self>, so_far: Bytes) -> Result<(String, String), PortError>;
}

/// Searches inside the sandbox.
#[async_trait]
pub(crate) trait Searches: Send + Sync {
    /// Which files have matching lines, and how many.
    async fn count(&self, search: &Search) -> Result<Counted, PortError>;
    /// The matching lines of some of these files, in the given order.
    async fn lines(&self, search: &Search, files: &[String]) -> Result<Vec<MatchedFile>, PortError>;
    /// Files by name.
    async fn find(&self, find: &Find) -> Result<Found, PortError>;
}
