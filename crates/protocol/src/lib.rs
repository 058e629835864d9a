//! What travels between E2B clients, servers and sandboxes. Types mirror the wire and have no behaviour beyond it.

pub mod envd;
pub mod guest;
pub mod headers;
pub mod rest;
pub mod rpc;
pub mod signature;
