//! Safe wrappers around the kernel calls of a launch; the only module of this crate with unsafe
//! code.
#![allow(unsafe_code)]

mod interface;
pub(crate) mod landlock;
pub(crate) mod loopback;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod process;
pub(crate) mod trial;
pub(crate) mod tun;
