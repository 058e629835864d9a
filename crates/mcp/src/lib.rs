//! The tools over the Model Context Protocol, on standard streams and over streamable HTTP.
//!
//! ```text
//! client ── stdio or HTTP ──> Handler ──> Desk ── enter ──> Workplaces (a port: which sandbox, woken or made)
//!                                          │
//!                                          └── one dispatcher a session ──> tools
//! ```
//!
//! The current revision of the protocol (2026-07-28) and those with a handshake before it are served side by side; `rmcp` speaks
//! them. What is ours: when a sandbox is entered and left, sessions, heartbeats, detaching before clients lose patience, answers
//! that fit, spilled output as resources, and who may connect.
//!
//! Knows nothing of sandbox services: [`Workplaces`] is what it needs of one.

mod access;
mod answer;
mod call;
mod desk;
mod handler;
mod heartbeat;
mod http;
mod resource;
mod server;
mod session;
mod size;
mod workplace;

pub use access::{Access, Token};
pub use server::{ServeError, Server, Settings};
pub use workplace::{Contents, EnterError, Entered, ReadError, Workplace, Workplaces};
