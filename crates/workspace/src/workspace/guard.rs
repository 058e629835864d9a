//! A guard that keeps the sandbox usable while it is held: replacing the sandbox waits for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sdk::Sandbox;
use tokio::time::Instant;

use super::core::WorkspaceCore;
use super::error::Unavailable;
use super::gate::Permit;
use super::resume::{AutoRestore, ResumeOutcome};

/// Attempts to find the sandbox running, between which another operation may pause it again.
const ATTEMPTS: usize = 5;

/// An operation in a workspace. Dropping it leaves the sandbox gate.
pub struct SandboxGuard {
    core: Arc<WorkspaceCore>,
    sandbox: Sandbox,
    epoch: u64,
    resumed: bool,
    auto_restore: Option<Arc<AutoRestore>>,
    waited: Duration,
    _permit: Permit,
}

impl SandboxGuard {
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Changes with every new sandbox: knowledge of processes and of files outside the saved
    /// directory is then void.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Notices about what did not survive a change of sandbox. Each is delivered once to all
    /// callers without a name.
    pub fn notices(&self) -> Vec<String> {
        self.notices_for("")
    }

    /// The notices for a named reader: each is delivered once per reader.
    pub fn notices_for(&self, reader: &str) -> Vec<String> {
        self.core.take_notices(reader)
    }

    /// Whether the workspace was paused, or without a sandbox, before this.
    pub fn was_resumed(&self) -> bool {
        self.resumed
    }

    /// Set if the files were replaced by those of a checkpoint for this guard.
    pub fn auto_restore(&self) -> Option<&Arc<AutoRestore>> {
        self.auto_restore.as_ref()
    }

    /// How long the caller waited for the gate and the resume.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Reports that the sandbox did not answer normally: the provider is asked before the next
    /// guard is given.
    pub fn mark_suspect(&self) {
        if self.core.ready_sandbox().is_some_and(|(_, epoch)| epoch == self.epoch) {
            self.core.detach();
        }
    }
}

impl Drop for SandboxGuard {
    fn drop(&mut self) {
        self.core.touched.store(true, Ordering::Release);
        self.core.unsaved.store(true, Ordering::Release);
        self.core.changed.notify_one();
    }
}

impl fmt::Debug for SandboxGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxGuard")
            .field("sandbox", &self.sandbox)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl WorkspaceCore {
    /// Waits while the sandbox is being replaced, resumes it if necessary, and lets the caller in.
    /// If the sandbox is known to run, this sends no request.
    pub(super) async fn enter(self: &Arc<Self>) -> Result<SandboxGuard, Unavailable> {
        let started = Instant::now();
        let mut resumed = false;
        let mut auto_restore = None;
        for _ in 0..ATTEMPTS {
            if let Err(error) = self.check().await {
                // Taking the operation lock retakes a lost lease, if it is free.
                drop(self.begin_op().await);
                self.check().await.map_err(|_| error)?;
            }
            let timeout = self.settings().gate_timeout;
            let Some(permit) = self.gate.enter(timeout).await else {
                return Err(Unavailable::Busy { workspace: self.name.clone(), after: timeout });
            };
            // The lease may have been lost meanwhile.
            if self.check().await.is_err() {
                continue;
            }
            if let Some((attached, epoch)) = self.ready_sandbox() {
                let (core, sandbox) = (Arc::clone(self), attached.sandbox);
                let waited = started.elapsed();
                return Ok(SandboxGuard { core, sandbox, epoch, resumed, auto_restore, waited, _permit: permit });
            }
            drop(permit);
            let op = self.begin_op().await;
            if self.ready_sandbox().is_none() {
                let outcome = self.ensure_ready(&op).await?;
                resumed |= !matches!(outcome, ResumeOutcome::Attached);
                auto_restore = outcome.auto_restore().or(auto_restore);
            }
        }
        Err(Unavailable::Busy { workspace: self.name.clone(), after: started.elapsed() })
    }
}
