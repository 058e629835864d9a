//! Tests of a node with an engine in memory.

mod egress;
mod life;
mod missing;
mod records;
mod restart;
mod simulation;
mod snapshots;
mod support;
mod volumes;
