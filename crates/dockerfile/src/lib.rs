//! Parses Dockerfiles into build plans: the stages, the base of each, and its steps, with every
//! variable of the Dockerfile expanded. An instruction that a sandbox cannot honour is an error
//! with its position; nothing is dropped silently.
//!
//! This crate knows nothing of servers, images or files. It has its own parser: the one published
//! parser with spans recognizes a here-document only at the start of a `RUN`, and does not join
//! shell_quote words.
#![forbid(unsafe_code)]

mod error;
mod expand;
mod plan;
mod read;
mod scan;
mod scope;
#[cfg(test)]
mod tests;
mod words;

pub use error::DockerfileError;
pub use plan::{Action, Copy, CopyFrom, Options, Origin, Plan, Stage, Step};
pub use read::plan;
