//! Models of the code that threads share, which loom runs in every order of their steps.
//!
//! The files are the product's, compiled here with loom's locks. What they take from tokio is
//! replaced by [`sync`] and [`time`]: the documented behaviour on loom's locks, since loom does not
//! see into tokio.

// So that the product's files find `tokio::sync` here.
extern crate self as tokio;

pub mod event;
pub mod feed;
pub mod gate;
pub mod pool;
pub mod sync;
pub mod time;
