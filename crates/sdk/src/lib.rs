//! The E2B client for Rust. It works with E2B's cloud, a self-hosted E2B and Sandbar's own server.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandbar_sdk::Client;
//!
//! let client = Client::from_env()?; // E2B_API_KEY, and E2B_API_URL for a self-hosted server
//! let sandbox = client.create("base").await?;
//!
//! sandbox.files().write("hello.py", "print('hello')").await?;
//! let output = sandbox.commands().run("python3 hello.py").await?;
//! assert_eq!(output.stdout_text(), "hello\n");
//! sandbox.kill().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Every call has a deadline ([`Client::within`], [`Sandbox::within`] change it), the client
//! monitors every stream, and every error names the attempted operation, the sandbox and the
//! remedy. Dropping a future stops waiting; each call that changes state documents what the server
//! may still do.

mod client;
mod commands;
mod config;
mod control;
mod envd;
mod error;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod git;
mod pty;
mod sandbox;
mod transport;
mod version;
mod watched;

pub use client::{Client, ClientBuilder};
pub use commands::label;
pub use commands::{
    Chunk, Command, CommandError, Commands, Event, Exit, Output, Process, ProcessInfo, ProcessName, Running, Signal,
};
pub use config::ConfigError;
pub use control::{
    Connect, Create, CreateError, Fork, ForkError, Inspection, ListQuery, LogQuery, NewSnapshot, Order, Pause,
    PauseOutcome, Resume, SandboxError, SandboxPage, SnapshotQuery, TimeRange,
};
pub use control::{secrets, templates, volumes};
pub use error::CallError;
pub use files::{
    Entry, EntryKind, Expiry, FileError, FileEvent, FileEventKind, FileEvents, FileStream, Files, OnlyOver, Watch,
};
pub use git::{
    Author, Branches, ChangeKind, CloneOptions, Credentials, Git, GitChange, GitError, GitScope, GitStatus, Pull, Push,
};
pub use protocol::envd::{FileKind, WrittenFile};
pub use protocol::{InvalidSandboxId, SandboxId};
pub use pty::{Pty, Shell, Size};
pub use sandbox::{PortRoute, Sandbox};
pub use secret::Secret;
pub use watched::GoneReason;

/// The protocol's own types, as servers send them.
pub mod model {
    pub use protocol::rest::*;
}
