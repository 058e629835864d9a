//! Limits, accounting, freezing and killing of groups of processes, on cgroup v1, v2 and both
//! mixed. Knows nothing of sandboxes, files or launchers.
//!
//! A [`Hierarchy`] is a program's parent cgroup in every tree it needs; each group is one
//! [`Cgroup`] below it. Invariant: every directory of a group holds the same processes. The
//! controllers may be in different trees (v1) or in one (v2); freezing and killing go through the
//! cgroup2 tree wherever one is mounted, even without controllers.
//!
//! [`ProcessShares`] and [`ProcessorClasses`] divide between the groups what they have together. A
//! [`MemoryCgroup`] stands alone, beside the cgroup of the process that creates it.

#![forbid(unsafe_code)]

mod ceiling;
mod files;
mod group;
mod hierarchy;
mod memory_cgroup;
mod mounts;
mod own;
mod process_shares;
mod processor_classes;

use std::io;

pub use ceiling::Ceiling;
pub use group::{Cgroup, CgroupLimits, CgroupUsage};
pub use hierarchy::Hierarchy;
pub use memory_cgroup::MemoryCgroup;
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
