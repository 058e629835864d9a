//! Helpers of the system tests: a real server in a directory of its own, and a small blocking
//! client for it.
//!
//! The client speaks plain HTTP/1.1 and Connect with JSON, so that tests see the bytes of the wire.

pub(crate) mod cutter;
pub(crate) mod delegated;
pub(crate) mod holdings;
pub(crate) mod internet;
pub(crate) mod mcp_process;
pub(crate) mod program;
pub(crate) mod sandbox;
pub(crate) mod server;

pub(crate) use cutter::Cutter;
pub(crate) use holdings::Holdings;
pub(crate) use mcp_process::McpProcess;
pub(crate) use program::Program;
pub(crate) use sandbox::{Output, Sandbox};
pub(crate) use server::Server;
pub(crate) use testing::{eventually, http, repeats};
