//! Wire types shared by E2B clients, servers and sandboxes. Types mirror the wire format and have
//! no other behaviour.

pub mod envd;
pub mod guest;
pub mod headers;
pub mod rest;
pub mod rpc;
mod sandbox_id;
pub mod signature;

pub use sandbox_id::{InvalidSandboxId, SandboxId};
