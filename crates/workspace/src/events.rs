//! Events of workspaces, delivered to the program's observer: screenshots, a timeline, a log.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::ledger::{Limit, LimitWarning};
use crate::name::{ProviderName, WorkspaceName};
use checkpoint::{ProjectId, Stamp};

/// Receives events. The workspace waits for `event` to return, so an observer runs long work in a
/// task of its own.
#[async_trait]
pub trait Observer: Send + Sync {
    async fn event(&self, event: &WorkspaceEvent);
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoopObserver;

#[async_trait]
impl Observer for NoopObserver {
    async fn event(&self, _event: &WorkspaceEvent) {}
}

/// An event of a workspace. Events never contain values of its variables.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkspaceEvent {
    pub workspace: WorkspaceName,
    pub project: ProjectId,
    pub at: Timestamp,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kind of event, with its details.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// Setup is complete and the workspace can be used.
    Created {
        provider: ProviderName,
        sandbox: String,
    },
    #[serde(rename = "snapshot_saved")]
    CheckpointSaved {
        stamp: Stamp,
        key: String,
        files: u64,
        bytes: u64,
    },
    /// A save found the files unchanged since the newest checkpoint and stored none.
    #[serde(rename = "snapshot_unchanged")]
    CheckpointUnchanged {
        stamp: Stamp,
    },
    /// All attempts of a save failed. The sandbox keeps running and older checkpoints are intact.
    #[serde(rename = "snapshot_failed")]
    CheckpointFailed {
        reason: String,
    },
    /// A commit was made: through the workspace, or by a command in the sandbox.
    PhaseCommitted {
        commit: String,
        message: Option<String>,
    },
    /// The declared server does not answer yet; the workspace waits for it.
    DevServerAwaited {
        command: String,
        port: u16,
        within: Duration,
    },
    /// The declared server answers.
    DevServerReady {
        sandbox: String,
        port: u16,
        url: String,
    },
    DevServerFailed {
        reason: String,
    },
    /// The sandbox's end time was moved to `until`.
    Extended {
        sandbox: String,
        until: Timestamp,
    },
    /// A new sandbox replaced one that was about to reach its end.
    Rotated {
        from: Option<String>,
        sandbox: String,
        provider: ProviderName,
        took: Duration,
    },
    /// The workspace moved to another provider.
    Moved {
        from: ProviderName,
        to: ProviderName,
        sandbox: String,
        took: Duration,
    },
    /// The previous sandbox could not be reached. It still runs, and holds the changes made since
    /// the checkpoint.
    LeftBehind {
        provider: ProviderName,
        sandbox: String,
        since: Stamp,
    },
    /// A rotation or move failed; the old sandbox is still in use.
    HandoverFailed {
        reason: String,
    },
    /// The files were replaced by those of a checkpoint.
    Restored {
        stamp: Stamp,
        sandbox: String,
        provider: ProviderName,
    },
    Paused {
        sandbox: String,
    },
    /// The sandbox runs again, until then; its dev server may still be starting.
    Resumed {
        sandbox: String,
        until: Timestamp,
        took: Duration,
    },
    /// The provider no longer has the sandbox, and no process here stopped it.
    SandboxLost {
        sandbox: String,
    },
    /// The workspace has no sandbox; resuming restores a checkpoint.
    Stopped {
        reason: String,
    },
    /// A warning threshold of a limit was crossed.
    LimitWarning(LimitWarning),
    /// A limit is used up: the workspace is checkpointed and paused until there is more.
    LimitReached {
        limit: Limit,
    },
    /// Only the checkpoints of the workspace are left.
    Destroyed {
        #[serde(rename = "snapshot")]
        checkpoint: Option<Stamp>,
    },
}
