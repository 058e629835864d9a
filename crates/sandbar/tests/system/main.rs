//! Tests of the whole program: a real server, real sandboxes, plain HTTP.

mod agent;
mod attack;
mod backup;
mod cli;
mod config;
mod egress;
mod full_disk;
mod full_records;
mod hosts;
mod isolation;
mod limits;
mod mcp;
mod missing;
mod network;
mod power_cut;
mod program;
mod records;
mod reliability;
mod rootless;
mod run_joined;
mod support;
mod templates;
mod tool;
mod workspace;
