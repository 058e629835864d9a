//! Durable workspaces on any E2B provider: a workspace outlives every sandbox it runs in.
//!
//! Knows the client and nothing of how sandboxes are made, of tools, browsers or HTTP servers.
#![forbid(unsafe_code)]

mod building;
mod chain;
pub mod clock;
pub mod config;
pub mod devserver;
pub mod events;
pub mod faults;
mod house;
pub mod label;
pub mod ledger;
pub mod mask;
mod name;
pub mod phase;
pub mod process;
pub mod provider;
pub mod records;
mod settings;
pub mod setup;
mod shell;
#[cfg(test)]
mod simulation;
pub mod snapshot;
mod workspace;
mod workspaces;

pub use building::BuildError;
pub use chain::chain;
pub use house::Parts;
pub use name::{InvalidName, ProviderName, WorkspaceName};
pub use settings::Settings;
pub use workspace::{
    BroughtBack, HandedOver, LastFiles, LeftBehind, METADATA, MoveOptions, OpenError, Pass, PhaseCommit, SetupError,
    Unavailable, Unsaved, Workspace, WorkspaceError,
};
pub use workspaces::{
    Abandoned, Attendance, Attended, Created, ORPHAN_GRACE, Orphan, SandboxCondition, Swept, WorkspaceView, Workspaces,
};
