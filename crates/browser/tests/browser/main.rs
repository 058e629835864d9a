//! The real browser against small servers on loopback.

mod blocking;
mod life;
mod pictures;
mod store;
mod support;
