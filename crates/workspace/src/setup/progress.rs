//! The progress of a setup, stored by the caller so that the next attempt continues from there.

use std::fmt;

use sdk::{Sandbox, SandboxId};
use serde::{Deserialize, Serialize};

/// A step of a setup, displayed as `clone`, `files`, `command 2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// The project directory, with the repository if there is one.
    Clone,
    /// The given files.
    Files,
    /// A given command, counted from 1.
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
/// Each step is identified by a digest of its input. A retry with a corrected command runs that one
/// and those after it, and repeats none before it.
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
    /// Whether all steps are done.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Notes for the user: changes that were not sent, submodules that are missing.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Resets the progress if it belongs to another sandbox.
    pub(super) fn begin(&mut self, sandbox: &Sandbox) {
        let id = Some(SandboxId::to_string(sandbox.id()));
        if self.sandbox != id {
            *self = Self { sandbox: id, ..Self::default() };
        }
    }

    /// Whether the step at `index` was done with this digest. If not, all later ones are discarded.
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
    fn a_changed_step_repeats_with_all_after_it() {
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
