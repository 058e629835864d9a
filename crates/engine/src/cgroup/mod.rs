//! Limits, accounting, freezing and killing of a sandbox's processes, on cgroup v1, v2 and both
//! mixed.
//!
//! A [`Hierarchy`] is the server's own cgroup at the root of every tree it needs; each sandbox is
//! one [`Cgroup`] below it. Invariant: every directory of a sandbox's cgroup holds the same
//! processes. The controllers may be in different trees (v1) or in one (v2); freezing and killing
//! go through the cgroup2 tree wherever one is mounted, even without controllers.

mod ceiling;
mod files;
mod group;
mod hierarchy;
mod mounts;
mod process_shares;
mod processor_classes;

use std::io;

pub use ceiling::Ceiling;
pub use group::{Cgroup, CgroupUsage};
pub use hierarchy::Hierarchy;
pub use mounts::{Controller, Mounts};
pub use process_shares::ProcessShares;
pub use processor_classes::{Calls, ProcessorClasses};

/// Why a cgroup could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The machine lacks something; `fix` is the command or setting that provides it.
    #[error("cgroups cannot be used: {what}; {fix}")]
    Unsupported { what: String, fix: String },
    #[error("{0:?} cannot be the name of a cgroup")]
    InvalidName(String),
    #[error("cgroup {0} already exists and has processes")]
    Exists(String),
    #[error("cgroup {name}: {what} did not happen in time")]
    Timeout { name: String, what: &'static str },
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
}

impl CgroupError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
