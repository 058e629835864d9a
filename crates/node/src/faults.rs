//! Named places between two steps of a build, a snapshot or a fork, where a test may kill the server.
//!
//! Nothing is left half-made only if every place where work may break off has been tried, so the places have names and a list. A debug build
//! looks for the file `kill-at` in its data directory and dies where that says; in a release build all this is nothing.

use std::path::{Path, PathBuf};

/// A place between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// An image is unpacked, and nothing speaks of it.
    BuildRootMade,
    BuildRootRecorded,
    /// The files after a step are copied, and nothing speaks of the copy.
    BuildStepCopied,
    BuildStepRecorded,
    /// A stage that another needs is done.
    BuildStageKept,
    /// The template's files are there, and the template does not know.
    BuildFilesKept,
    BuildRecorded,
    SnapshotCopied,
    SnapshotRecorded,
    /// The first child has its files.
    ForkCopied,
    /// All have; none was booted.
    ForkPrepared,
    /// One runs at least.
    ForkMade,
}

impl Point {
    pub const BUILD: [Self; 7] = [
        Self::BuildRootMade,
        Self::BuildRootRecorded,
        Self::BuildStepCopied,
        Self::BuildStepRecorded,
        Self::BuildStageKept,
        Self::BuildFilesKept,
        Self::BuildRecorded,
    ];
    pub const SNAPSHOT: [Self; 2] = [Self::SnapshotCopied, Self::SnapshotRecorded];
    pub const FORK: [Self; 3] = [Self::ForkCopied, Self::ForkPrepared, Self::ForkMade];

    /// As the file names it.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

pub(crate) struct Faults {
    order: PathBuf,
}

impl Faults {
    pub(crate) fn new(data: &Path) -> Self {
        Self { order: data.join("kill-at") }
    }

    /// Dies here if a test says so.
    pub(crate) fn pass(&self, point: Point) {
        if cfg!(debug_assertions) && std::fs::read_to_string(&self.order).is_ok_and(|name| name == point.name()) {
            // Cannot fail for oneself; where it did, the test would say that nobody died.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}
