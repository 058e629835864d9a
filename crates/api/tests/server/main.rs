//! Tests of the server over a node whose engine is in memory.

mod connections;
mod control;
mod edge;
mod engine_failures;
mod fallback;
mod network;
mod secrets;
mod snapshots;
mod support;
mod tls;
mod volumes;

testing::in_namespaces!();
