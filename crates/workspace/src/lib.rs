//! Durable workspaces on any E2B provider: a workspace outlives every sandbox it runs in.
//!
//! Knows the client and nothing of how sandboxes are made, of tools, browsers or HTTP servers.
#![forbid(unsafe_code)]

pub mod config;
pub mod devserver;
pub mod faults;
pub mod ledger;
pub mod mask;
mod name;
pub mod phase;
pub mod provider;
pub mod records;
pub mod setup;
mod shell;
pub mod snapshot;

pub use name::{InvalidName, ProviderName, WorkspaceName};
