//! The details of a workspace's record, for the next process.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use sdk::SandboxId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::mark::{Loss, Mark};
use super::notices::Notices;
use crate::name::ProviderName;
use crate::provider::Resources;
use crate::records::Size;
use crate::setup::Progress;
use checkpoint::Stamp;

/// Stored as JSON in the record. Every field has a default, so that records of older programs can
/// be read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    /// Tells this workspace from others that had its name before. [`None`] in records of older
    /// programs. Never set later: sandboxes that carry another id may be its own then.
    pub(crate) id: Option<Uuid>,
    /// The job that pays, in addition to the project.
    pub(crate) job: Option<String>,
    /// The lifetime of the workspace from its creation or restore on.
    pub(crate) ttl_seconds: u64,
    pub(crate) resources: Resources,
    /// Which steps of the setup are done.
    pub(crate) setup: Progress,
    /// Incremented with every new sandbox.
    pub(crate) epoch: u64,
    pub(crate) run: Option<Run>,
    /// In progress while the state is `Moving`.
    pub(crate) handover: Option<Handover>,
    /// Sandboxes that are no longer used and still to be killed.
    pub(crate) retired: Vec<SandboxRef>,
    /// When to search for sandboxes that handovers requested and did not wait for.
    pub(crate) strays_due: Option<Timestamp>,
    /// Sandboxes that could not be reached when a checkpoint was restored in another one, and may
    /// have newer files. Killed only at a user's request.
    pub(crate) left_behind: Vec<SandboxRef>,
    /// Sandboxes that their provider did not find, latest last. A server with another data
    /// directory does not find them either, so sweeps do not kill them.
    pub(crate) lost: Vec<SandboxRef>,
    #[serde(rename = "news")]
    pub(crate) notices: Notices,
    /// The last known commit.
    pub(crate) head: Option<String>,
    /// The checkpoint that has a paused sandbox's files.
    pub(crate) saved_at_pause: Option<Stamp>,
    /// Whether the workspace ever had a checkpoint of its own.
    pub(crate) saved: bool,
    /// When its files were last saved, or found unchanged in the newest checkpoint.
    pub(crate) saved_at: Option<Timestamp>,
    /// Whether a process used the sandbox since.
    pub(crate) unsaved: bool,
    /// The mark in its sandbox.
    pub(crate) mark: Option<Mark>,
    pub(crate) loss: Option<Loss>,
    /// The checkpoint of a restore in progress: the files may already be its own.
    pub(crate) restoring: Option<Stamp>,
    /// Excluded folders of which sessions were notified.
    #[serde(rename = "excluded_told")]
    pub(crate) reported_excludes: BTreeSet<String>,
    /// Files with values of variables that block checkpoints, of which sessions were notified.
    #[serde(rename = "exposed_told")]
    pub(crate) reported_exposed: BTreeSet<String>,
    /// Whether checkpoints may contain values of its variables.
    pub(crate) allow_env_values: bool,
    /// Why there is no sandbox, while there is none.
    pub(crate) stopped: Option<NoSandbox>,
}

/// The most lost sandboxes that a record keeps.
const MOST_LOST: usize = 8;

impl Details {
    /// The checkpoint to continue from without the sandbox, if it is not the newest: a newer one
    /// may have the files of a sandbox that lost its last writes.
    pub(crate) fn newest_before_loss(&self) -> Option<Stamp> {
        self.loss.as_ref().filter(|loss| self.mark.as_ref() == Some(&loss.mark))?.newest
    }

    pub(crate) fn record_lost(&mut self, place: SandboxRef) {
        self.lost.retain(|lost| lost.sandbox != place.sandbox);
        self.lost.push(place);
        let surplus = self.lost.len().saturating_sub(MOST_LOST);
        self.lost.drain(..surplus);
    }
}

/// A run of a sandbox, since its start or last resume.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Run {
    /// By our clock; a plan's longest lifetime counts from here.
    pub(crate) started_at: Timestamp,
    /// By our clock, as last known.
    pub(crate) ends_at: Timestamp,
    pub(crate) size: Size,
}

/// A sandbox and its provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxRef {
    pub(crate) provider: ProviderName,
    #[serde(with = "id")]
    pub(crate) sandbox: SandboxId,
}

impl fmt::Display for SandboxRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.sandbox, self.provider)
    }
}

/// A change of sandbox in progress. While the old one lives, a rollback kills the successor; once
/// the old one is gone, the checkpoint has the files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) old: Option<SandboxRef>,
    /// The checkpoint with the files, if one was taken.
    #[serde(rename = "snapshot")]
    pub(crate) checkpoint: Option<Stamp>,
    /// Known once it is created. A successor that is not recorded here is found by its metadata.
    pub(crate) successor: Option<SandboxRef>,
}

/// Why a workspace has no sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NoSandbox {
    /// The sandbox disappeared, or its successor could not be created: the next use restores the
    /// workspace.
    Lost,
    /// The user killed the sandbox outside of the workspace and reported it: like `Lost`, but not a
    /// failure.
    Ended(LastFiles),
    /// The workspace's lifetime ended: a user has to restore it.
    TimeOver,
}

/// What became of the files of a sandbox that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastFiles {
    /// The newest checkpoint has all of them.
    Saved,
    /// Changes since the newest checkpoint are lost.
    Unsaved,
}

mod id {
    use sdk::SandboxId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &SandboxId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(id.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SandboxId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
