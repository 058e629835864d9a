//! Dockerfiles as build plans: which stages there are, what each begins with, and what is done in it, with every variable of
//! the Dockerfile replaced. Whatever a sandbox has no use for is an error that points at its place in the text: nothing is
//! left out silently.
//!
//! Knows nothing of servers, images or files. Reads the text itself: the one published parser with spans takes a
//! here-document for one only where a `RUN` begins with it, and does not join quoted words.
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
