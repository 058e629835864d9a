//! The only unsafe code of the guest: system interfaces without a safe wrapper in std and rustix.

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
pub(crate) use signals::block_signals;
pub use signals::unblock_signals;
pub(crate) use spawn::{Image, ProcessIdentity, ProcessSpawnError, Stdio, spawn};
