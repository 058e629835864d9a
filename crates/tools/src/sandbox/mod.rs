//! The tools on a sandbox, through E2B's API alone where the server offers no more: files, and
//! processes. Session state lives in the sandbox too, so that separate programs share it.

mod files;
mod lease;
mod machine;
mod marks;
mod memory;
mod searching;
mod shell;
mod source;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use sdk::Sandbox;
use serde_json::Value;

use crate::dispatch::{CallIds, Core, OverwriteGuard, Progress, ToolDispatcher, Watch};
use crate::live_output::OutputChunk;
use crate::mask::mask_result;
use crate::port::{MachineLease, MachineSource, PortError};
use crate::result::ToolResult;
use crate::screenshots::ScreenshotProvider;
use lease::SandboxMachineLease;
use machine::{SHARED, SandboxMachine, SessionSettings};
use source::SingleSandbox;
pub use source::{AcquireError, LeaseGuard, SandboxLease, SandboxSource};

/// The session of dispatchers that name none.
const SESSION: &str = "default";
/// Working directory of the first command in a sandbox.
const ROOT: &str = "/home/user";

/// Runs the tools on a sandbox, or on the current sandbox of a source.
///
/// Working directory, exported variables, cached files and background tasks belong to a session.
/// Dispatchers with the same session on the same sandbox share them, even in concurrent processes.
pub struct SandboxToolDispatcher {
    core: Core,
    source: Arc<dyn SandboxSource>,
    settings: SessionSettings,
    /// The sandbox of the last call, with what was detected about it.
    machine: Mutex<Option<Arc<SandboxMachine>>>,
}

impl SandboxToolDispatcher {
    /// Uses the default session of a sandbox. A call resumes a paused sandbox.
    pub fn new(sandbox: Sandbox) -> Self {
        Self::with_source(Arc::new(SingleSandbox::new(sandbox)))
    }

    /// Uses the default session in whatever sandbox `source` provides for a call.
    pub fn with_source(source: Arc<dyn SandboxSource>) -> Self {
        let settings = SessionSettings { base: SHARED, session: SESSION.to_owned(), root: ROOT.to_owned() };
        Self { core: Core::new(CallIds::Random), source, settings, machine: Mutex::default() }
    }

    /// Uses the session `name`. Characters other than letters, digits, `.`, `_` and `-` are
    /// replaced.
    #[must_use]
    pub fn session(mut self, name: &str) -> Self {
        let safe = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
        let name: String = name.chars().take(64).map(safe).collect();
        self.settings.session = if name.trim_matches('.').is_empty() { SESSION.to_owned() } else { name };
        self
    }

    /// Sets the directory in the sandbox that has the files of all sessions; `/tmp/.sandbar` unless
    /// set. A source that replaces its sandbox names one that it copies into the new sandbox.
    #[must_use]
    pub fn session_directory(mut self, directory: &'static str) -> Self {
        self.settings.base = directory;
        self
    }

    /// Sets the working directory of the first command, and of commands whose directory is gone.
    #[must_use]
    pub fn root(mut self, directory: impl Into<String>) -> Self {
        self.settings.root = directory.into();
        self
    }

    /// Sets whether `write_file` may replace a file that was not read.
    #[must_use]
    pub fn overwrite_guard(mut self, guard: OverwriteGuard) -> Self {
        self.core.guard = guard;
        self
    }

    /// Sets the source of screenshots; without one `take_screenshot` reports that there is no
    /// browser.
    #[must_use]
    pub fn screenshots(mut self, screenshots: Arc<dyn ScreenshotProvider>) -> Self {
        self.core.screenshots = Some(screenshots);
        self
    }

    /// Sets the port that `take_screenshot` captures by default; it is 3000 unless set.
    #[must_use]
    pub fn preview_port(mut self, port: u16) -> Self {
        self.core.preview_port = port;
        self
    }

    async fn acquire_lease(&self) -> Result<SandboxMachineLease, PortError> {
        let lease = self.source.acquire(&self.settings.session).await;
        let lease = lease.map_err(|AcquireError(text)| PortError::Unavailable(text))?;
        let mut known = self.machine.lock();
        // What was detected about another sandbox does not hold for this one.
        let same = known.as_ref().filter(|machine| machine.epoch() == lease.epoch).cloned();
        let replaced = known.is_some() && same.is_none();
        let machine = same.unwrap_or_else(|| {
            Arc::new(SandboxMachine::new(lease.sandbox.clone(), lease.epoch, Arc::clone(&self.source), &self.settings))
        });
        *known = Some(Arc::clone(&machine));
        drop(known);
        Ok(SandboxMachineLease::new(machine, lease, replaced))
    }

    /// Masks secrets in what the callbacks of a watch receive.
    fn mask_watch(&self, mut watch: Watch) -> Watch {
        if let Some(callback) = watch.progress.take() {
            let source = Arc::clone(&self.source);
            watch.progress = Some(Arc::new(move |mut progress: Progress| {
                source.mask(&mut progress.last_line);
                callback(progress);
            }));
        }
        if let Some(callback) = watch.output.take() {
            let source = Arc::clone(&self.source);
            watch.output = Some(Arc::new(move |mut chunk: OutputChunk| {
                source.mask(&mut chunk.text);
                callback(chunk);
            }));
        }
        watch
    }
}

impl fmt::Debug for SandboxToolDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxToolDispatcher")
            .field("source", &self.source)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl MachineSource for SandboxToolDispatcher {
    async fn acquire(&self) -> Result<Box<dyn MachineLease>, PortError> {
        Ok(Box::new(self.acquire_lease().await?))
    }
}

#[async_trait]
impl ToolDispatcher for SandboxToolDispatcher {
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let mut result = self.core.dispatch(self, tool_name, tool_input, self.mask_watch(watch)).await;
        mask_result(&mut result, &mut |text| self.source.mask(text));
        result
    }

    async fn close(&self) {
        let closed = match self.acquire_lease().await {
            Ok(lease) => lease.close().await,
            Err(error) => Err(error),
        };
        if let Err(error) = closed {
            tracing::debug!(%error, "session could not be closed");
        }
    }
}
