//! Egress of a sandbox and the way in to its ports, driven with real sockets through real devices.
//!
//! Needs root, `unshare` and `nsenter` from util-linux, `ip` from iproute2, and Python.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

mod budget;
mod dns;
mod headers;
mod inward;
mod lab;
mod proxy;
mod raw;
mod reach;
mod rules;
mod tcp;
mod throughput;
mod tls;
mod udp;

testing::in_namespaces!();
