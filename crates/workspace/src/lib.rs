//! Durable workspaces on any E2B provider: a workspace outlives every sandbox it runs in.
//!
//! Knows the client and nothing of how sandboxes are made, of tools, browsers or HTTP servers.
#![forbid(unsafe_code)]

pub mod config;
pub mod faults;
pub mod ledger;
mod name;
pub mod provider;
pub mod records;
pub mod snapshot;

pub use name::{InvalidName, ProviderName, WorkspaceName};
