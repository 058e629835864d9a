//! Requests, except for a new build.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::ProjectId;
use crate::text::{AnyText, NonBlankText};

/// Whether the user has agreed to pay for it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RebuildRequest {
    #[serde(default)]
    pub(super) confirm: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreRequest {
    /// The key of a snapshot, from the list of snapshots.
    pub(super) key: NonBlankText<1000>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovalAnswer {
    pub(super) allow: bool,
    /// Sent to the model.
    pub(super) reason: Option<AnyText<2000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct JobsQuery {
    /// Only builds of this project.
    pub(super) project_id: Option<ProjectId>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FilesQuery {
    /// Relative to the project; empty for the project itself.
    #[serde(default)]
    pub(super) path: AnyText<4096>,
    /// The key of a snapshot to read instead of the newest state.
    pub(super) snapshot: Option<NonBlankText<1000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct FileQuery {
    /// Relative to the project.
    pub(super) path: NonBlankText<4096>,
    /// The key of a snapshot to read instead of the newest state.
    pub(super) snapshot: Option<NonBlankText<1000>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct EventsQuery {
    /// Only events after this number. The header `Last-Event-ID` takes precedence.
    pub(super) after: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TerminalQuery {
    #[schemars(range(min = 1, max = 1000))]
    pub(super) cols: Option<u16>,
    #[schemars(range(min = 1, max = 1000))]
    pub(super) rows: Option<u16>,
}
