//! The port to the sandbox of each call: a single sandbox that may be paused, or the current one of
//! a source that replaces it between calls, such as a workspace.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use sdk::{Connect, Sandbox};

/// Lifetime of a sandbox after it was resumed.
const RESUMED_LIFETIME: Duration = Duration::from_secs(3600);

/// Provides the sandbox for calls.
#[async_trait]
pub trait SandboxSource: fmt::Debug + Send + Sync {
    /// Waits for a usable sandbox, which stays usable while the lease is held. The lease carries
    /// the notices for this session.
    ///
    /// # Errors
    /// [`AcquireError`] with a text for the model.
    async fn acquire(&self, session: &str) -> Result<SandboxLease, AcquireError>;

    /// Resumes a sandbox that a call found paused. [`None`] if that fails, or the sandbox was
    /// replaced.
    async fn resume(&self, found: &Sandbox, epoch: u64) -> Option<Sandbox>;

    /// Masks secrets.
    fn mask(&self, text: &mut String);
}

/// Why no sandbox is available. The text is for the model.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct AcquireError(pub String);

/// The right to use a sandbox for one call. The source keeps the sandbox usable until drop.
pub struct SandboxLease {
    pub sandbox: Sandbox,
    /// Changes with every new sandbox of the source.
    pub epoch: u64,
    /// What did not survive, one line each.
    pub notices: Vec<String>,
    /// The sandbox was resumed for this call.
    pub resumed: bool,
    /// How long the call waited for the sandbox.
    pub waited: Duration,
    guard: Option<Box<dyn LeaseGuard>>,
}

/// What a source holds for the time of a lease.
pub trait LeaseGuard: Send + Sync + 'static {
    /// The sandbox did not respond as a running one does; the source checks it before its next
    /// lease.
    fn report_unresponsive(&self);
}

impl SandboxLease {
    /// A lease of a sandbox that nothing replaces.
    pub fn new(sandbox: Sandbox) -> Self {
        Self { sandbox, epoch: 0, notices: Vec::new(), resumed: false, waited: Duration::ZERO, guard: None }
    }

    /// Holds `guard` until the lease is dropped.
    #[must_use]
    pub fn guarded(mut self, guard: impl LeaseGuard) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }

    /// Reports that the sandbox did not respond as a running one does.
    pub(super) fn report_unresponsive(&self) {
        if let Some(guard) = &self.guard {
            guard.report_unresponsive();
        }
    }
}

/// One sandbox.
#[derive(Debug)]
pub(super) struct SingleSandbox {
    sandbox: RwLock<Sandbox>,
    resuming: tokio::sync::Mutex<()>,
}

impl SingleSandbox {
    pub(super) fn new(sandbox: Sandbox) -> Self {
        Self { sandbox: RwLock::new(sandbox), resuming: tokio::sync::Mutex::default() }
    }
}

#[async_trait]
impl SandboxSource for SingleSandbox {
    async fn acquire(&self, _session: &str) -> Result<SandboxLease, AcquireError> {
        Ok(SandboxLease::new(self.sandbox.read().clone()))
    }

    async fn resume(&self, found: &Sandbox, _epoch: u64) -> Option<Sandbox> {
        // Concurrent calls resume it once.
        let _lock = self.resuming.lock().await;
        match found.client().connect(found.id(), Connect::timeout(RESUMED_LIFETIME)).await {
            Ok(sandbox) => {
                *self.sandbox.write() = sandbox.clone();
                Some(sandbox)
            }
            Err(error) => {
                tracing::debug!(%error, "a paused sandbox could not be resumed");
                None
            }
        }
    }

    fn mask(&self, _text: &mut String) {}
}
