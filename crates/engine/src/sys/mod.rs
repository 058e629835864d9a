//! Safe wrappers around the kernel calls the engine needs; the only place with unsafe code.
#![allow(unsafe_code)]

pub(crate) mod btrfs;
pub(crate) mod loopdev;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod process;
pub(crate) mod trial;
pub(crate) mod tun;
