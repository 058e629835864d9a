//! The crate's only unsafe code: what a child process does between fork and exec.
#![expect(unsafe_code, reason = "the kernel's interface; every block says why it holds")]

mod root;
mod spawn;

pub(crate) use root::Root;
pub(crate) use spawn::{Plan, SpawnFailure, Spawned, spawn};
