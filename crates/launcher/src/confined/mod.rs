//! Confined processes: a program of ours that reads hostile bytes with no privileges but those for
//! writing one tree.
//!
//! ```text
//! server ──spawn──▶ supervisor ──clone──▶ confined process (new namespaces of every kind)
//!    │ confinement,      │ ids, tree ──────▶ │ drops privileges, installs the filter
//!    │ descriptors ────▶ │ waits             │ works
//!    │ ◀──── report ─────┘                   │
//!    │ ◀──── answer (a pipe) ────────────────┘
//! ```
//! The supervisor is the program itself before it has read anything hostile. It holds the server's
//! privileges, only waits, and reports how the confined process ended. It kills that process when
//! the server's end of the channel closes, and the kernel does when the supervisor dies. The
//! confined process has no descriptors but `/dev/null`, the pipe, and those that the server passed.
//!
//! A step that fails ends the process before it reads anything, and the error names the step. Only
//! Landlock is skipped where the kernel lacks it.

mod caller;
mod process;

use serde::{Deserialize, Serialize};

pub use self::caller::{Bounds, ConfinedError, call};
pub use self::process::run;
use crate::spec::OnDisk;
use crate::users::{CONFINED_IDS, FIRST_SUBORDINATE, Rights, SANDBOX_IDS};

/// Ids, root and resource limits of a confined process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Confinement {
    pub ids: Ids,
    /// Whether the first descriptor of the call is a directory that becomes the process's root,
    /// writable. Without it, the root is empty and read-only.
    pub has_tree: bool,
    /// Limit of the address space.
    pub memory_bytes: u64,
    /// Limit of processor time.
    pub cpu_seconds: u64,
}

/// The ids of a confined process: its id 0 and those after it, as numbered in the caller's user
/// namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    user: u32,
    group: u32,
    count: u32,
    /// How the files of the tree are owned on disk.
    on_disk: OnDisk,
}

impl Ids {
    /// For a process that writes no tree.
    pub fn without_tree() -> Self {
        match Rights::of_this_process() {
            Rights::All => Self::range(CONFINED_IDS, 1, OnDisk::OfSandbox),
            Rights::Range => Self::range(FIRST_SUBORDINATE, 1, OnDisk::OfSandbox),
            Rights::Own => Self::own(),
        }
    }

    /// For a tree whose id 0 is `first` in the caller's user namespace, and its other ids follow.
    pub fn from(first: u32) -> Self {
        match Rights::of_this_process() {
            Rights::All => Self::mapped(),
            Rights::Range => Self::range(first, SANDBOX_IDS, OnDisk::OfSandbox),
            Rights::Own => Self::own(),
        }
    }

    /// For a tree that belongs to the caller.
    pub fn of_caller() -> Self {
        if Rights::of_this_process() == Rights::All { Self::mapped() } else { Self::own() }
    }

    /// Ids that own nothing on the host: an id-mapped mount shows the disk's ids 0 to 65535 as
    /// these.
    fn mapped() -> Self {
        Self::range(CONFINED_IDS, SANDBOX_IDS, OnDisk::ZeroBased)
    }

    fn own() -> Self {
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { user, group, count: 1, on_disk: OnDisk::OfSandbox }
    }

    fn range(first: u32, count: u32, on_disk: OnDisk) -> Self {
        Self { user: first, group: first, count, on_disk }
    }
}

/// What the supervisor reports to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Report {
    /// This step of the confinement failed; no work was done.
    Failed { step: String, errno: i32 },
    /// How the confined process ended.
    Ended(Ending),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    Exit(i32),
    Signal(i32),
}
