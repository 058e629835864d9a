//! The daemon as a process of its own, spoken to over its socket as a server does.

mod common;
mod control;
mod files;
mod filesystem;
mod interpreter;
mod limit;
mod process;
mod replace;
