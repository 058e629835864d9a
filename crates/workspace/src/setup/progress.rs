//! How far a set-up has come, kept by the caller so that the next attempt goes on from there.

use std::fmt;

use sdk::{Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

/// A step of a set-up, for people and programs: `clone`, `files`, `command 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The project's directory, with the repository in it if there is one.
    Clone,
    /// The files that were given.
    Files,
    /// A command that was given; the first is 1.
    Command(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clone => f.write_str("clone"),
            Self::Files => f.write_str("files"),
            Self::Command(number) => write!(f, "command {number}"),
        }
    }
}

/// Which steps are done, in which sandbox.
///
/// Each is known by a digest of what it was to do. So whoever corrects a command and tries again gets the corrected one and
/// those after it, and none of those before it a second time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// In another sandbox nothing is done.
    sandbox: Option<String>,
    done: Vec<String>,
    finished: bool,
    notes: Vec<String>,
}

impl Progress {
    /// There is nothing left to do.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// What somebody should know: changes that were not sent, submodules that are absent.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Takes up what was done in this sandbox.
    pub(super) fn begin(&mut self, sandbox: &Sandbox) {
        let id = Some(SandboxId::to_string(sandbox.id()));
        if self.sandbox != id {
            *self = Self { sandbox: id, ..Self::default() };
        }
    }

    /// Whether the step at `index` was done as `digest` says. If not, none after it counts.
    pub(super) fn has(&mut self, index: usize, digest: &str) -> bool {
        if self.done.get(index).is_some_and(|done| done == digest) {
            return true;
        }
        self.done.truncate(index);
        false
    }

    pub(super) fn add(&mut self, digest: String, notes: Vec<String>) {
        self.done.push(digest);
        self.notes.extend(notes);
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_changed_is_done_again_with_all_after_it() {
        let mut progress = Progress::default();
        for digest in ["clone", "files", "command"] {
            progress.add(digest.into(), Vec::new());
        }
        let stored = serde_json::to_value(&progress).expect("it can be stored");
        let mut progress: Progress = serde_json::from_value(stored).expect("and read");
        assert!(progress.has(0, "clone"));
        assert!(!progress.has(1, "other files"));
        progress.add("other files".into(), Vec::new());
        assert!(!progress.has(2, "command"));
    }
}
