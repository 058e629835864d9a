//! Provides the sandbox for each call: a single sandbox that may be paused, or the current sandbox
//! of a workspace, which may have been replaced since the last call.

use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use sdk::{Connect, Sandbox};
use serde_json::Value;
use workspace::{SandboxGuard, Workspace, chain};

use crate::port::PortError;
use crate::result::{Block, ToolResult};

/// Lifetime of a sandbox after it was resumed.
const RESUMED_LIFETIME: Duration = Duration::from_secs(3600);

/// Provides the sandbox for calls.
#[async_trait]
pub(super) trait SandboxSource: fmt::Debug + Send + Sync {
    /// Waits for a usable sandbox, which stays usable while the lease is held. The lease carries
    /// the notices for this session.
    async fn acquire(&self, session: &str) -> Result<SandboxLease, PortError>;

    /// Resumes a sandbox that a call found paused. [`None`] if that fails, or the sandbox was
    /// replaced.
    async fn resume(&self, found: &Sandbox, epoch: u64) -> Option<Sandbox>;

    /// Masks secrets.
    fn mask(&self, text: &mut String);
}

/// The right to use a sandbox for one call.
#[derive(Debug)]
pub(super) struct SandboxLease {
    pub(super) sandbox: Sandbox,
    /// Changes with every new sandbox.
    pub(super) epoch: u64,
    /// What did not survive, one line each.
    pub(super) notices: Vec<String>,
    pub(super) resumed: bool,
    pub(super) waited: Duration,
    pass: Option<SandboxGuard>,
}

impl SandboxLease {
    /// Reports that the sandbox did not respond as a running one does.
    pub(super) fn report_unresponsive(&self) {
        if let Some(pass) = &self.pass {
            pass.mark_suspect();
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
    async fn acquire(&self, _session: &str) -> Result<SandboxLease, PortError> {
        let sandbox = self.sandbox.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(SandboxLease { sandbox, epoch: 0, notices: Vec::new(), resumed: false, waited: Duration::ZERO, pass: None })
    }

    async fn resume(&self, found: &Sandbox, _epoch: u64) -> Option<Sandbox> {
        // Concurrent calls resume it once.
        let _lock = self.resuming.lock().await;
        match found.client().connect(found.id(), Connect::timeout(RESUMED_LIFETIME)).await {
            Ok(sandbox) => {
                *self.sandbox.write().unwrap_or_else(PoisonError::into_inner) = sandbox.clone();
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

/// The current sandbox of a workspace.
pub(super) struct WorkspaceSandbox(pub(super) Workspace);

impl fmt::Debug for WorkspaceSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkspaceSandbox").field(self.0.name()).finish()
    }
}

#[async_trait]
impl SandboxSource for WorkspaceSandbox {
    async fn acquire(&self, session: &str) -> Result<SandboxLease, PortError> {
        let pass = self.0.enter().await.map_err(|error| PortError::Unavailable(chain(&error)))?;
        Ok(SandboxLease {
            sandbox: pass.sandbox().clone(),
            epoch: pass.epoch(),
            notices: pass.notices_for(session),
            resumed: pass.was_resumed(),
            waited: pass.waited(),
            pass: Some(pass),
        })
    }

    async fn resume(&self, _found: &Sandbox, epoch: u64) -> Option<Sandbox> {
        // The sandbox was paused behind the workspace's back; entering again makes the workspace
        // check its state.
        self.0.enter().await.ok()?.mark_suspect();
        let pass = self.0.enter().await.ok()?;
        (pass.epoch() == epoch).then(|| pass.sandbox().clone())
    }

    fn mask(&self, text: &mut String) {
        *text = self.0.mask(text);
    }
}

/// Masks secrets in everything that a result shows.
pub(super) fn mask_result(source: &dyn SandboxSource, result: &mut ToolResult) {
    for block in &mut result.content {
        if let Block::Text(text) = block {
            source.mask(text);
        }
    }
    mask_value(source, &mut result.structured);
}

fn mask_value(source: &dyn SandboxSource, value: &mut Value) {
    match value {
        Value::String(text) => source.mask(text),
        Value::Array(items) => items.iter_mut().for_each(|item| mask_value(source, item)),
        Value::Object(fields) => fields.values_mut().for_each(|item| mask_value(source, item)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
