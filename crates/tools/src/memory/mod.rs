//! The tools without a sandbox: files in memory, a small shell, time as tokio keeps it. For tests of whatever uses tools.

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

use crate::dispatch::{Core, Ids, OverwriteGuard, ToolDispatcher, Watch};
use crate::port::{Ground, Machine, Memory, PortError, Visit};
use crate::result::ToolResult;
use crate::screenshots::Screenshots;
use machine::MemoryMachine;
pub use shell::Step;

/// Runs the tools on files in memory. The same schemas and answers as on a sandbox, no network, no clock.
///
/// Its shell knows `echo`, `printf`, `cat`, `cd`, `pwd`, `export`, `unset`, `sleep`, `head`, `seq`, `yes`, `mkdir`, `rm`,
/// `touch`, `env`, `read`, `kill`, `exit`, `true`, `false`, `test`, pipes, redirections, `&&`, `||`, `;`, `&` and `( )`.
/// Everything else is scripted with [`InMemoryToolDispatcher::on`]; what is neither is a command that does not exist, with a
/// message that says so.
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
        Self { core: Core::new(Ids::Counted(AtomicU64::new(0))), machine: Arc::new(MemoryMachine::new()) }
    }

    /// Whether `write_file` may replace what was not read.
    #[must_use]
    pub fn overwrite_guard(mut self, guard: OverwriteGuard) -> Self {
        self.core.guard = guard;
        self
    }

    /// Where `take_screenshot` gets its pictures.
    #[must_use]
    pub fn screenshots(mut self, screenshots: Arc<dyn Screenshots>) -> Self {
        self.core.screenshots = Some(screenshots);
        self
    }

    /// What a command does whose words begin like `words`.
    pub fn on(&self, words: &str, steps: impl IntoIterator<Item = Step>) {
        self.machine.script(words, steps.into_iter().collect());
    }

    /// Makes a file, with its directories, as somebody else would.
    pub fn put(&self, path: &str, content: impl Into<Bytes>) {
        self.machine.files().put(path, content.into());
    }

    /// What is in a file.
    pub fn get(&self, path: &str) -> Option<Bytes> {
        self.machine.files().get(path)
    }

    /// Makes a link, as `ln -s` does.
    pub fn link(&self, path: &str, target: &str) {
        self.machine.files().link(path, target);
    }

    /// Makes a device or pipe.
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

    /// How many processes are alive.
    pub fn processes(&self) -> usize {
        self.machine.processes()
    }
}

/// It is always there.
#[async_trait]
impl Ground for InMemoryToolDispatcher {
    async fn enter(&self) -> Result<Box<dyn Visit>, PortError> {
        Ok(Box::new(Arc::clone(&self.machine)))
    }
}

#[async_trait]
impl Visit for Arc<MemoryMachine> {
    fn machine(&self) -> &dyn Machine {
        self
    }

    async fn leave(self: Box<Self>, _result: &mut ToolResult) {}
}

#[async_trait]
impl ToolDispatcher for InMemoryToolDispatcher {
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        self.core.dispatch(self, tool_name, tool_input, watch).await
    }

    async fn close(&self) {
        if let Err(error) = Memory::close(&self.machine).await {
            tracing::debug!(%error, "a session could not be closed");
        }
    }
}
