//! The server over a node whose engine is in memory.

mod connections;
mod control;
mod edge;
mod elsewhere;
mod network;
mod secrets;
mod snapshots;
mod support;
mod tls;
mod volumes;
