//! The tools over the Model Context Protocol, on standard streams and over streamable HTTP.
//!
//! ```text
//! client ── stdio or HTTP ──> Handler ──> ServerState ── acquire ──> SandboxProvider (port)
//!                                          │
//!                                          └── one dispatcher per session ──> tools
//! ```
//!
//! `rmcp` implements the protocol: the current revision (2026-07-28) and the earlier ones with a
//! handshake. This crate adds the lifetime of the sandbox, sessions, heartbeats, detaching long
//! commands before clients time out, a size limit for responses, spilled output as resources, and
//! access control.
//!
//! The crate knows no sandbox service: it depends on the port [`SandboxProvider`].

mod access;
mod call;
mod handler;
mod heartbeat;
mod http;
mod provider;
mod resource;
mod response;
mod server;
mod session;
mod size;
mod state;

pub use access::{Access, Token};
pub use provider::{AcquiredSandbox, FileContents, ReadError, SandboxHandle, SandboxProvider};
pub use server::{ServeError, Server, Settings};
