//! Tests the real browser against small servers on loopback.

mod blocking;
mod lifecycle;
mod screenshots;
mod store;
mod support;

testing::in_namespaces!();
