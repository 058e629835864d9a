//! Where the tools get their sandbox from, anew for every call: one sandbox that may sleep, or a workspace that may have
//! moved into another meanwhile.

use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use sdk::{Connect, Sandbox};
use serde_json::Value;
use workspace::{Pass, Workspace, chain};

use crate::port::PortError;
use crate::result::{Block, ToolResult};

/// How long a sandbox lives at least after it was woken.
const AWAKE: Duration = Duration::from_secs(3600);

/// Gives the sandbox.
#[async_trait]
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// Waits until there is a sandbox that can be worked in, as long as the answer is kept.
    /// What happened meanwhile is told to each session.
    async fn enter(&self, session: &str) -> Result<Entry, PortError>;

    /// Wakes the sandbox that somebody found asleep. [`None`] when it cannot be, or there is another by now.
    async fn wake(&self, found: &Sandbox, epoch: u64) -> Option<Sandbox>;

    /// Hides what must not be shown.
    fn mask(&self, text: &mut String);
}

/// A way into a sandbox.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) sandbox: Sandbox,
    /// Another with every new sandbox.
    pub(super) epoch: u64,
    /// What did not survive, one line each.
    pub(super) notices: Vec<String>,
    pub(super) resumed: bool,
    pub(super) waited: Duration,
    pass: Option<Pass>,
}

impl Entry {
    /// Says that the sandbox did not answer as a living one does.
    pub(super) fn doubt(&self) {
        if let Some(pass) = &self.pass {
            pass.doubt();
        }
    }
}

/// One sandbox.
#[derive(Debug)]
pub(super) struct Single {
    sandbox: RwLock<Sandbox>,
    waking: tokio::sync::Mutex<()>,
}

impl Single {
    pub(super) fn new(sandbox: Sandbox) -> Self {
        Self { sandbox: RwLock::new(sandbox), waking: tokio::sync::Mutex::default() }
    }
}

#[async_trait]
impl Source for Single {
    async fn enter(&self, _session: &str) -> Result<Entry, PortError> {
        let sandbox = self.sandbox.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Entry { sandbox, epoch: 0, notices: Vec::new(), resumed: false, waited: Duration::ZERO, pass: None })
    }

    async fn wake(&self, found: &Sandbox, _epoch: u64) -> Option<Sandbox> {
        // Once for all who found it so.
        let _turn = self.waking.lock().await;
        match found.client().connect(found.id(), Connect::timeout(AWAKE)).await {
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

/// The sandbox of a workspace.
pub(super) struct OfWorkspace(pub(super) Workspace);

impl fmt::Debug for OfWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OfWorkspace").field(self.0.name()).finish()
    }
}

#[async_trait]
impl Source for OfWorkspace {
    async fn enter(&self, session: &str) -> Result<Entry, PortError> {
        let pass = self.0.enter().await.map_err(|error| PortError::Unavailable(chain(&error)))?;
        Ok(Entry {
            sandbox: pass.sandbox().clone(),
            epoch: pass.epoch(),
            notices: pass.notices_for(session),
            resumed: pass.was_resumed(),
            waited: pass.waited(),
            pass: Some(pass),
        })
    }

    async fn wake(&self, _found: &Sandbox, epoch: u64) -> Option<Sandbox> {
        // Somebody paused it behind the workspace's back; asked again, the workspace looks for itself.
        self.0.enter().await.ok()?.doubt();
        let pass = self.0.enter().await.ok()?;
        (pass.epoch() == epoch).then(|| pass.sandbox().clone())
    }

    fn mask(&self, text: &mut String) {
        *text = self.0.mask(text);
    }
}

/// Hides in everything that a result shows.
pub(super) fn mask_result(source: &dyn Source, result: &mut ToolResult) {
    for block in &mut result.content {
        if let Block::Text(text) = block {
            source.mask(text);
        }
    }
    mask_value(source, &mut result.structured);
}

fn mask_value(source: &dyn Source, value: &mut Value) {
    match value {
        Value::String(text) => source.mask(text),
        Value::Array(items) => items.iter_mut().for_each(|item| mask_value(source, item)),
        Value::Object(fields) => fields.values_mut().for_each(|item| mask_value(source, item)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
