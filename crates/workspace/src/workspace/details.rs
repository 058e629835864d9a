//! What a workspace's record carries for the process that comes after this one.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use sdk::SandboxId;
use serde::{Deserialize, Serialize};

use super::mark::Mark;
use super::news::News;
use crate::name::ProviderName;
use crate::provider::Resources;
use crate::records::Size;
use crate::setup::Progress;
use crate::snapshot::Stamp;

/// Kept as JSON in the record. Everything has a default, so that an older program's record can be read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    /// Who pays besides the project.
    pub(crate) job: Option<String>,
    /// How long a workspace lives that is made or brought back now.
    pub(crate) ttl_seconds: u64,
    pub(crate) resources: Resources,
    /// Which steps of the set-up are done.
    pub(crate) setup: Progress,
    /// Grows with every new sandbox.
    pub(crate) epoch: u64,
    pub(crate) run: Option<Run>,
    /// Under way while the state is `Moving`.
    pub(crate) handover: Option<Handover>,
    /// Nobody works in these any more, and they are still to be ended.
    pub(crate) retired: Vec<Place>,
    /// Could not be reached when a snapshot was restored elsewhere, and may have newer files than that: not ended unless
    /// somebody asks for it.
    pub(crate) left_behind: Vec<Place>,
    /// Were not found when they were looked for, the latest last. A server with another data
    /// directory does not find them either: they are not ended by a sweep.
    pub(crate) lost: Vec<Place>,
    pub(crate) news: News,
    /// The last commit that was seen.
    pub(crate) head: Option<String>,
    /// What a paused sandbox's files are in.
    pub(crate) saved_at_pause: Option<Stamp>,
    /// There is, or was, a snapshot of its own.
    pub(crate) saved: bool,
    /// When its files were last saved, or seen to be in the newest snapshot.
    pub(crate) saved_at: Option<Timestamp>,
    /// A process worked in the sandbox since.
    pub(crate) unsaved: bool,
    /// What its sandbox was marked with.
    pub(crate) mark: Option<Mark>,
    /// Generated folders of which those who work here were told that no snapshot has them.
    pub(crate) excluded_told: BTreeSet<String>,
    /// Files with values of variables, which keep it from being saved, of which they were told.
    pub(crate) exposed_told: BTreeSet<String>,
    /// Snapshots may contain values of its variables.
    pub(crate) allow_env_values: bool,
    /// Why there is no sandbox, while there is none.
    pub(crate) stopped: Option<Stopped>,
}

/// Sandboxes that were not found, of which a record keeps so many.
const MOST_LOST: usize = 8;

impl Details {
    pub(crate) fn note_lost(&mut self, place: Place) {
        self.lost.retain(|lost| lost.sandbox != place.sandbox);
        self.lost.push(place);
        let surplus = self.lost.len().saturating_sub(MOST_LOST);
        self.lost.drain(..surplus);
    }
}

/// A sandbox from its start, or from when it was resumed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Run {
    /// By our clock; a plan's longest lifetime counts from here.
    pub(crate) started_at: Timestamp,
    /// By our clock, as far as it was known.
    pub(crate) ends_at: Timestamp,
    pub(crate) size: Size,
}

/// A sandbox and who has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) provider: ProviderName,
    #[serde(with = "id")]
    pub(crate) sandbox: SandboxId,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.sandbox, self.provider)
    }
}

/// A change of sandbox that is under way. As long as the old one lives, it is undone by ending the successor; when the old
/// one is gone, the snapshot has the files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Handover {
    pub(crate) old: Option<Place>,
    /// Has the files, when it was taken for this.
    pub(crate) snapshot: Option<Stamp>,
    /// Known once it is made. One that was made and is not known here is found by its metadata.
    pub(crate) successor: Option<Place>,
}

/// Why a workspace has no sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stopped {
    /// The sandbox went without being asked to, or its successor could not be made: the next who wants to work brings it
    /// back.
    Lost,
    /// Somebody ended the sandbox behind the workspace's back and said so: as with `Lost`, but nothing went wrong.
    Ended(LastFiles),
    /// The workspace's own time was over: somebody has to want it back.
    TimeOver,
}

/// What became of the files of a sandbox that somebody ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LastFiles {
    /// The newest snapshot has all of them.
    Saved,
    /// What was changed since the newest snapshot went with the sandbox.
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
