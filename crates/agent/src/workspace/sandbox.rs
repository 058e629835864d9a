//! The current sandbox of a workspace, which may have been replaced since the last call.

use std::fmt;
use std::sync::Arc;

use ::workspace::setup::PROJECT_DIRECTORY;
use ::workspace::{SESSION_DIRECTORY, SandboxGuard, Workspace};
use async_trait::async_trait;
use sdk::Sandbox;
use text::error_chain;
use tools::{AcquireError, LeaseGuard, SandboxLease, SandboxSource, SandboxToolDispatcher};

/// The tools in a workspace's default session. Calls wait while the workspace changes its sandbox
/// and continue in the new one; what did not survive is reported once.
pub fn workspace_tools(workspace: Workspace) -> SandboxToolDispatcher {
    SandboxToolDispatcher::with_source(Arc::new(WorkspaceSandbox(workspace)))
        .session_directory(SESSION_DIRECTORY)
        .root(PROJECT_DIRECTORY)
}

/// Provides the current sandbox of a workspace.
pub struct WorkspaceSandbox(pub Workspace);

impl fmt::Debug for WorkspaceSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkspaceSandbox").field(self.0.name()).finish()
    }
}

struct Guard(SandboxGuard);

impl LeaseGuard for Guard {
    fn report_unresponsive(&self) {
        self.0.mark_suspect();
    }
}

#[async_trait]
impl SandboxSource for WorkspaceSandbox {
    async fn acquire(&self, session: &str) -> Result<SandboxLease, AcquireError> {
        let guard = self.0.enter().await.map_err(|error| AcquireError(error_chain(&error)))?;
        let mut lease = SandboxLease::new(guard.sandbox().clone());
        lease.epoch = guard.epoch();
        lease.notices = guard.notices_for(session);
        lease.resumed = guard.was_resumed();
        lease.waited = guard.waited();
        Ok(lease.guarded(Guard(guard)))
    }

    async fn resume(&self, _found: &Sandbox, epoch: u64) -> Option<Sandbox> {
        // The sandbox was paused behind the workspace's back; entering again makes the workspace
        // check its state.
        self.0.enter().await.ok()?.mark_suspect();
        let guard = self.0.enter().await.ok()?;
        (guard.epoch() == epoch).then(|| guard.sandbox().clone())
    }

    fn mask(&self, text: &mut String) {
        *text = self.0.mask(text);
    }
}
