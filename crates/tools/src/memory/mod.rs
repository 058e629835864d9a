//! The tools without a sandbox: files in memory, a small shell, tokio's clock. For tests of code
//! that uses tools.

mod files;
mod machine;
mod parse;
mod programs;
mod shell;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use crate::dispatch::{CallIds, Core, OverwriteGuard, ToolDispatcher, Watch};
use crate::port::{Machine, MachineLease, MachineSource, PortError, SessionStore};
use crate::result::ToolResult;
use crate::screenshots::ScreenshotProvider;
use machine::MemoryMachine;
pub use shell::Step;

/// Runs the tools on files in memory. The same schemas and results as on a sandbox, no network, no
/// clock.
///
/// Its shell knows `echo`, `printf`, `cat`, `cd`, `pwd`, `export`, `unset`, `sleep`, `head`, `seq`,
/// `yes`, `mkdir`, `rm`, `touch`, `env`, `read`, `kill`, `exit`, `true`, `false`, `test`, pipes,
/// redirections, `&&`, `||`, `;`, `&` and `( )`. Other commands are scripted with
/// [`InMemoryToolDispatcher::on`]; an unscripted one does not exist, and the message says so.
pub struct InMemoryToolDispatcher {
    core: Core,
    machine: Arc<MemoryMachine>,
}

impl Default for InMemoryToolDispatcher {
    fn default() -> Self {
        Self::new()
    }
}

impl InMemoryToolDispatcher {
    /// An empty home, `/home/user`.
    pub fn new() -> Self {
        Self { core: Core::new(CallIds::Counted(AtomicU64::new(0))), machine: Arc::new(MemoryMachine::new()) }
    }

    /// Sets whether `write_file` may replace a file that was not read.
    #[must_use]
    pub fn overwrite_guard(mut self, guard: OverwriteGuard) -> Self {
        self.core.guard = guard;
        self
    }

    /// Sets the source of screenshots.
    #[must_use]
    pub fn screenshots(mut self, screenshots: Arc<dyn ScreenshotProvider>) -> Self {
        self.core.screenshots = Some(screenshots);
        self
    }

    /// Scripts the commands whose words begin with `words`.
    pub fn on(&self, words: &str, steps: impl IntoIterator<Item = Step>) {
        self.machine.script(words, steps.into_iter().collect());
    }

    /// Creates a file with its directories, outside the session.
    pub fn put(&self, path: &str, content: impl Into<Bytes>) {
        self.machine.files().put(path, content.into());
    }

    /// The content of a file.
    pub fn get(&self, path: &str) -> Option<Bytes> {
        self.machine.files().get(path)
    }

    /// Creates a symbolic link.
    pub fn link(&self, path: &str, target: &str) {
        self.machine.files().link(path, target);
    }

    /// Creates a device or pipe.
    pub fn special(&self, path: &str) {
        self.machine.files().special(path);
    }

    /// Permission bits of a file.
    pub fn mode(&self, path: &str) -> Option<u32> {
        self.machine.files().mode(path)
    }

    /// Changes permission bits of a file.
    pub fn set_mode(&self, path: &str, mode: u32) {
        self.machine.files().set_mode(path, mode);
    }

    /// Number of running processes.
    pub fn processes(&self) -> usize {
        self.machine.processes()
    }
}

/// Always available.
#[async_trait]
impl MachineSource for InMemoryToolDispatcher {
    async fn acquire(&self) -> Result<Box<dyn MachineLease>, PortError> {
        Ok(Box::new(Arc::clone(&self.machine)))
    }
}

#[async_trait]
impl MachineLease for Arc<MemoryMachine> {
    fn machine(&self) -> &dyn Machine {
        self
    }

    async fn release(self: Box<Self>, _result: &mut ToolResult) {}
}

#[async_trait]
impl ToolDispatcher for InMemoryToolDispatcher {
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        self.core.dispatch(self, tool_name, tool_input, watch).await
    }

    async fn close(&self) {
        if let Err(error) = SessionStore::close(&self.machine).await {
            tracing::debug!(%error, "a session could not be closed");
        }
    }
}
