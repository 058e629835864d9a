//! The real browser against small servers on loopback.

mod pictures;
mod support;
