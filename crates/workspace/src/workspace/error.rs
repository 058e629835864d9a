//! Errors of workspaces.

use std::time::Duration;

use jiff::Timestamp;
use sdk::{CallError, CommandError, FileError, SandboxError, SandboxId};

use crate::devserver::DevServerError;
use crate::ledger::Limit;
use crate::name::{ProviderName, WorkspaceName};
use crate::phase::PhaseError;
use crate::process;
use crate::provider::{OrchestratorError, Unusable};
use crate::records::{LeaseError, RecordChangeError, RecordsError};
use crate::setup::StepFailed;
use checkpoint::{ObjectStoreError, RestoreError, SaveError, Stamp};

/// Why the workspace cannot be used now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// Another process holds it. Retry: once that process is done, this one retakes it.
    #[error("the lease of workspace {0} was lost to another process, which still has it; try again when it has done")]
    LeaseLost(WorkspaceName),
    /// The records rejected renewals until the lease expired. Remove the cause, then retry.
    #[error(
        "the lease of workspace {workspace} ran out, since the records could not renew it: {reason}; try again once that is put right"
    )]
    LeaseNotRenewed { workspace: WorkspaceName, reason: String },
    #[error("workspace {0} was closed in this process")]
    Closed(WorkspaceName),
    /// Create it again with the same name and setup: that continues with the failed step.
    #[error("workspace {0} is not set up; create it again to go on")]
    NotSetUp(WorkspaceName),
    /// Restore it.
    #[error("workspace {0} is stopped, since its time was over; restore it to go on")]
    Stopped(WorkspaceName),
    /// Raise the limit.
    #[error("workspace {workspace} stays paused: {limit} is used up")]
    OverBudget { workspace: WorkspaceName, limit: Limit },
    #[error("workspace {workspace} was between two sandboxes for {after:?}; try again")]
    Busy { workspace: WorkspaceName, after: Duration },
    /// The sandbox is gone, and no checkpoint could be restored.
    #[error(
        "sandbox_expired: the sandbox of workspace {workspace} is gone, and it could not be restored{}",
        way_out(source)
    )]
    Expired { workspace: WorkspaceName, source: Box<WorkspaceError> },
    /// Whether the sandbox lives is unknown. Retry, or restore the newest checkpoint, which may use
    /// another provider.
    #[error("sandbox_unreachable: sandbox {id} of workspace {workspace} at {provider} does not answer: {reason}")]
    Unreachable { workspace: WorkspaceName, id: SandboxId, provider: ProviderName, reason: String },
    #[error("workspace {workspace} could not be made ready")]
    Failed { workspace: WorkspaceName, source: Box<WorkspaceError> },
}

/// Without a checkpoint to restore, waiting does not help.
fn way_out(error: &WorkspaceError) -> &'static str {
    match error {
        WorkspaceError::Restore(RestoreError::NoCheckpoint { .. }) => "; `destroy` it, then `create` it again",
        _ => "",
    }
}

impl Unavailable {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::LeaseLost(_) => "lease_lost",
            Self::LeaseNotRenewed { .. } => "lease_not_renewed",
            Self::Closed(_) => "closed",
            Self::NotSetUp(_) => "not_set_up",
            Self::Stopped(_) => "stopped",
            Self::OverBudget { .. } => "over_budget",
            Self::Busy { .. } => "busy",
            Self::Expired { .. } => "sandbox_expired",
            Self::Unreachable { .. } => "sandbox_unreachable",
            Self::Failed { .. } => "failed",
        }
    }
}

/// Why an operation on a workspace failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("workspace {0} is at {1} already")]
    AlreadyThere(WorkspaceName, ProviderName),
    /// Move with `leave_unsaved`, or when the provider answers again.
    #[error(
        "sandbox {sandbox} of workspace {workspace} at {provider} does not answer ({reason}), and {} is in no snapshot; \
         move it when {provider} answers again, or leave that behind with --leave-unsaved",
        changed_since(since)
    )]
    Unsaved {
        workspace: WorkspaceName,
        sandbox: SandboxId,
        provider: ProviderName,
        since: Option<Stamp>,
        reason: String,
    },
    /// There is nothing left to pause.
    #[error(
        "sandbox_expired: sandbox {sandbox} of workspace {workspace} is gone, so there is nothing to pause; `resume` brings \
         its newest snapshot back"
    )]
    Lost { workspace: WorkspaceName, sandbox: SandboxId },
    /// The old sandbox is still in use, or paused.
    #[error("workspace {workspace} was not saved and replaced within {within:?}")]
    NotInTime { workspace: WorkspaceName, within: Duration },
    /// Restore again.
    #[error(
        "the sandbox of workspace {workspace} stopped or booted again while snapshot {stamp} was restored in it; its files may \
         be those of before"
    )]
    RestoreCut { workspace: WorkspaceName, stamp: Stamp },
    #[error("sandbox {0} cannot be attached: it is not running")]
    NotRunning(SandboxId),
    #[error("provider {provider} cannot be used: {source}")]
    Provider { provider: ProviderName, source: Unusable },
    #[error(transparent)]
    Placement(#[from] OrchestratorError),
    #[error(transparent)]
    Save(#[from] SaveError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error(transparent)]
    Store(#[from] ObjectStoreError),
    #[error(transparent)]
    Phase(#[from] PhaseError),
    #[error(transparent)]
    DevServer(#[from] DevServerError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Change(#[from] RecordChangeError),
    #[error(transparent)]
    Records(#[from] RecordsError),
}

fn changed_since(stamp: &Option<Stamp>) -> String {
    match stamp {
        Some(stamp) => format!("what was changed in it since snapshot {stamp}"),
        None => "what is in it".to_owned(),
    }
}

/// Why a workspace was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("there is no workspace {0}")]
    NotFound(WorkspaceName),
    /// Wait, or leave it to that process.
    #[error("workspace {workspace} is in use by {owner}, at least until {until}")]
    Held { workspace: WorkspaceName, owner: String, until: Timestamp },
    #[error("the record of workspace {workspace} cannot be understood: {reason}")]
    Damaged { workspace: WorkspaceName, reason: String },
    #[error(transparent)]
    Records(#[from] RecordsError),
}

impl OpenError {
    pub(crate) fn from_lease(error: LeaseError) -> Self {
        match error {
            LeaseError::Held { workspace, owner, until, .. } => {
                Self::Held { workspace, owner: process::display_name(&owner).to_owned(), until }
            }
            LeaseError::Lost(workspace) => {
                Self::Held { workspace, owner: "another process".to_owned(), until: Timestamp::now() }
            }
            LeaseError::Records(error) => Self::Records(error),
        }
    }
}

/// Why a workspace was not set up. Creating it again with the same name and setup continues from
/// there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    #[error("there is a workspace {0} already")]
    Exists(WorkspaceName),
    #[error("{0:?} cannot be the name of a variable: letters, digits and _ can be in it, and no digit first")]
    VariableName(String),
    /// Raise the limit.
    #[error("workspace {workspace} is not made: {limit} is used up")]
    OverBudget { workspace: WorkspaceName, limit: Limit },
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No sandbox was created.
    #[error(transparent)]
    Placement(#[from] OrchestratorError),
    #[error(transparent)]
    Step(#[from] StepFailed),
    /// The project's newest checkpoint could not be restored in the new sandbox.
    #[error("workspace {workspace} could not be set up")]
    Failed { workspace: WorkspaceName, source: WorkspaceError },
}
