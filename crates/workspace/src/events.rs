//! What happens to workspaces, told to whoever the program puts here: screenshots, a timeline, a log.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::Serialize;

use crate::ledger::{Limit, LimitWarning};
use crate::name::{ProviderName, WorkspaceName};
use crate::snapshot::{ProjectId, Stamp};

/// Is told what happens. The workspace waits for the answer, so what takes long belongs in a task of the observer's own.
#[async_trait]
pub trait Observer: Send + Sync {
    async fn event(&self, event: &WorkspaceEvent);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

#[async_trait]
impl Observer for Nobody {
    async fn event(&self, _event: &WorkspaceEvent) {}
}

/// Something that happened to a workspace. Values of its variables are in none of these.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkspaceEvent {
    pub workspace: WorkspaceName,
    pub project: ProjectId,
    pub at: Timestamp,
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// It is set up and can be worked in.
    Created {
        provider: ProviderName,
        sandbox: String,
    },
    SnapshotSaved {
        stamp: Stamp,
        key: String,
        files: u64,
        bytes: u64,
    },
    /// A save found the files of the newest snapshot, and made no other.
    SnapshotUnchanged {
        stamp: Stamp,
    },
    /// After all attempts. The work goes on, and the snapshots from before are as they were.
    SnapshotFailed {
        reason: String,
    },
    /// Somebody committed: through the workspace, or the agent in a command of its own.
    PhaseCommitted {
        commit: String,
        message: Option<String>,
    },
    /// The declared server does not answer yet, and is waited for.
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
    /// The sandbox lives until then.
    Extended {
        sandbox: String,
        until: Timestamp,
    },
    /// Another sandbox has taken the place of one whose end had come.
    Rotated {
        from: Option<String>,
        sandbox: String,
        provider: ProviderName,
        took: Duration,
    },
    /// It is with another provider now.
    Moved {
        from: ProviderName,
        to: ProviderName,
        sandbox: String,
        took: Duration,
    },
    /// The sandbox before this one could not be reached. It is not ended, and has what was changed since the snapshot.
    LeftBehind {
        provider: ProviderName,
        sandbox: String,
        since: Stamp,
    },
    /// A rotation or move that did not come about; the old sandbox is still in use.
    HandoverFailed {
        reason: String,
    },
    /// The files are those of a snapshot again.
    Restored {
        stamp: Stamp,
        sandbox: String,
        provider: ProviderName,
    },
    Paused {
        sandbox: String,
    },
    /// It runs again, until then; what is declared to run in it may still be starting.
    Resumed {
        sandbox: String,
        until: Timestamp,
        took: Duration,
    },
    /// The provider has it no more, and nobody here ended it.
    SandboxLost {
        sandbox: String,
    },
    /// Without a sandbox; a snapshot brings it back.
    Stopped {
        reason: String,
    },
    /// A share of a limit is used.
    LimitWarning(LimitWarning),
    /// A limit is used up: the work was saved and is paused until there is more.
    LimitReached {
        limit: Limit,
    },
    /// Nothing but its snapshots is left.
    Destroyed {
        snapshot: Option<Stamp>,
    },
}
