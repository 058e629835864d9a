//! Ports of the tools to a sandbox. One implementation uses a real sandbox, one lives in memory;
//! both pass the same contract tests.

mod shell;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::paths::BasePaths;
use crate::result::ToolResult;
use crate::search::{Counted, Find, Found, MatchedFile, Search};
pub(crate) use shell::{FinishedTask, Shell, ShellCall, ShellEnd, ShellEvent, Shells, StartDirectory};
pub use shell::{Stream, Survivor};

/// Provides a machine for each call.
#[async_trait]
pub(crate) trait MachineSource: Send + Sync {
    /// Waits for a usable machine.
    async fn acquire(&self) -> Result<Box<dyn MachineLease>, PortError>;
}

/// A machine for one call.
#[async_trait]
pub(crate) trait MachineLease: Send + Sync {
    fn machine(&self) -> &dyn Machine;
    /// Ends the lease, and adds to the result what happened to the machine meanwhile.
    async fn release(self: Box<Self>, result: &mut ToolResult);
}

/// Everything that the tools need from one sandbox.
pub(crate) trait Machine: Files + SessionStore + Shells + Searches {}
impl<M: Files + SessionStore + Shells + Searches> Machine for M {}

/// Why an operation on the sandbox failed.
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
    /// The file changed since it was read.
    #[error("it changed meanwhile")]
    Conflict,
    /// No response in time.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// The program could not be started.
    #[error("{0}")]
    NotStartable(String),
    /// The sandbox or the connection to it is gone. The text says whether the operation may have
    /// taken effect.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Other(String),
}

/// Type of a path's target, with links followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// A device, pipe or socket.
    Other,
}

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The path with all links resolved.
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// Modification time in nanoseconds.
    pub(crate) modified: i128,
    /// Permission bits.
    pub(crate) mode: u32,
    /// A new file of the tools' own user with this mode is equivalent, so a replacement has nothing
    /// else to restore.
    pub(crate) ordinary: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) is_directory: bool,
}

/// Result of fetching a path.
#[derive(Debug, Clone)]
pub(crate) enum Fetched {
    Directory,
    /// A device, pipe or socket.
    Special,
    /// Longer than the limit, so nothing was fetched.
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
    /// Metadata from before the read, if it had to be queried.
    pub(crate) stat: Option<Stat>,
}

/// A range of lines in a file that is too large to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// From 1; negative counts from the end.
    pub(crate) first: i64,
    pub(crate) count: usize,
    /// Counting reads the whole file.
    pub(crate) count_all: bool,
}

/// The lines of a window.
#[derive(Debug, Clone)]
pub(crate) struct Windowed {
    pub(crate) bytes: Bytes,
    pub(crate) total_lines: Option<u64>,
}

/// The expected state of a file that is replaced (compare-and-swap).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Basis<'a> {
    Absent,
    Was { stat: Option<&'a Stat>, sha256: &'a str },
}

impl<'a> Basis<'a> {
    pub(crate) fn from_fetch(fetch: &'a Fetch) -> Self {
        Self::Was { stat: fetch.stat.as_ref(), sha256: &fetch.sha256 }
    }
}

/// Access to files by absolute paths.
#[async_trait]
pub(crate) trait Files: Send + Sync {
    async fn stat(&self, path: &str) -> Result<Stat, PortError>;
    /// The content of a path, unless it is longer than `most`.
    async fn fetch(&self, path: &str, most: u64) -> Result<Fetched, PortError>;
    /// At most `most` bytes from the start.
    async fn read(&self, path: &str, most: usize) -> Result<Bytes, PortError>;
    /// Reads lines inside the sandbox.
    async fn window(&self, path: &str, window: Window) -> Result<Windowed, PortError>;
    async fn list(&self, path: &str) -> Result<Vec<Listed>, PortError>;
    /// The first few files of that name below a directory.
    async fn find_by_name(&self, directory: &str, name: &str) -> Result<Vec<String>, PortError>;
    /// Replaces or creates a file atomically, with its parents, and keeps mode and owner of the
    /// previous one. True if it had to be written in place.
    async fn replace(&self, path: &str, bytes: Bytes, basis: Basis<'_>) -> Result<bool, PortError>;
}

/// Session state that survives calls and processes. It is stored in the sandbox.
#[async_trait]
pub(crate) trait SessionStore: Send + Sync {
    /// Current directory and home.
    async fn base_paths(&self) -> Result<BasePaths, PortError>;
    async fn load(&self, key: &str) -> Result<Option<Bytes>, PortError>;
    async fn store(&self, key: &str, note: Bytes) -> Result<(), PortError>;
    async fn remove(&self, key: &str) -> Result<(), PortError>;
    /// Resets the shell's directory and variables.
    async fn reset_shell(&self) -> Result<(), PortError>;
    /// Stores output that was too long for a result, and returns its path.
    async fn spill_output(&self, call: &str, output: Bytes) -> Result<String, PortError>;
    /// Kills background tasks and deletes spilled output.
    async fn close(&self) -> Result<(), PortError>;
}

/// Searches inside the sandbox.
#[async_trait]
pub(crate) trait Searches: Send + Sync {
    /// The files with matching lines, and their counts.
    async fn count(&self, search: &Search) -> Result<Counted, PortError>;
    /// The matching lines of some files, in the given order.
    async fn lines(&self, search: &Search, files: &[String]) -> Result<Vec<MatchedFile>, PortError>;
    /// Finds files by name.
    async fn find(&self, find: &Find) -> Result<Found, PortError>;
}
