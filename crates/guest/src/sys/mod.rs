//! The only unsafe code of the guest: what std and rustix do not offer safely.

#![allow(unsafe_code)]

mod inherited;
mod memory;
mod readiness;
mod signals;
mod spawn;

pub use inherited::take_descriptor;
pub use memory::keep_heap_small;
pub(crate) use memory::return_memory;
pub(crate) use readiness::watch_readiness;
pub(crate) use signals::refuse_signals;
pub use signals::welcome_signals;
pub(crate) use spawn::{Identity, Image, SpawnError, Stdio, spawn};
