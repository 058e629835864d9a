//! Safe wrappers around the kernel calls that the engine needs; the only module of this crate with
//! unsafe code.
#![allow(unsafe_code)]

pub(crate) mod btrfs;
pub(crate) mod extents;
pub(crate) mod loopdev;
pub(crate) mod namespace;
pub(crate) mod watch;
