//! The daemon as a separate process, driven over its socket like a server does.

mod common;
mod control;
mod files;
mod filesystem;
mod interpreter;
mod limit;
mod process;
mod replace;

testing::in_namespaces!();
