//! Fault points: named places between two steps of a build, a snapshot or a fork, where a test
//! kills the server.
//!
//! A test that nothing is left incomplete must try every place where work can be interrupted, so
//! the places have names and a list. A debug build reads the file `kill-at` in its data directory
//! and kills itself at the point it names; a release build does nothing.

use std::path::{Path, PathBuf};

/// A place between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// An image is unpacked, and no record names it.
    BuildRootMade,
    BuildRootRecorded,
    /// The files after a step are copied, and no record names the copy.
    BuildStepCopied,
    BuildStepRecorded,
    /// The files of a stage that another stage needs are kept.
    BuildStageKept,
    /// The template's files are kept, and its record does not name them.
    BuildFilesKept,
    BuildRecorded,
    SnapshotCopied,
    SnapshotRecorded,
    /// The first child has its files.
    ForkCopied,
    /// All children have their files; none was booted.
    ForkPrepared,
    /// At least one child runs.
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

    /// The name in the file `kill-at`.
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

pub(crate) struct Faults {
    trigger: PathBuf,
}

impl Faults {
    pub(crate) fn new(data: &Path) -> Self {
        Self { trigger: data.join("kill-at") }
    }

    /// Kills the process here if the file `kill-at` names `point`.
    pub(crate) fn pass(&self, point: Point) {
        if cfg!(debug_assertions) && std::fs::read_to_string(&self.trigger).is_ok_and(|name| name == point.name()) {
            // A process can always kill itself; if it could not, the test would report that the
            // server did not die.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}
