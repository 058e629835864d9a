//! Durable workspaces on any E2B provider: a workspace outlives every sandbox it runs in.
//!
//! Depends on the client only: knows nothing of how sandboxes are made, of tools, browsers or HTTP
//! servers.
#![forbid(unsafe_code)]

mod checkpoint_sandbox;
mod checkpoints;
pub mod clock;
pub mod config;
mod context;
pub mod devserver;
pub mod events;
pub mod faults;
mod from_config;
pub mod ledger;
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
mod workspace;
mod workspaces;

pub use checkpoint_sandbox::ClientSandbox;
pub use context::Parts;
pub use from_config::BuildError;
pub use name::{InvalidName, ProviderName, WorkspaceName};
pub use settings::Settings;
pub use shell::SESSION_DIRECTORY;
pub use workspace::{
    AutoRestore, HandedOver, LastFiles, LeftBehind, METADATA, MoveOptions, OpenError, PhaseCommit, SandboxGuard,
    SetupError, Unavailable, Unsaved, Workspace, WorkspaceError,
};
pub use workspaces::{
    Abandoned, CreatedWorkspace, Maintained, MaintenanceOutcome, ORPHAN_GRACE, Orphan, OwnServer, SandboxCondition,
    Swept, WorkspaceView, Workspaces,
};
