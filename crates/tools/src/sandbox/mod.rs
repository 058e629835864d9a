//! The tools on a sandbox, through nothing but E2B's own API: files, and processes started in it. What a session remembers
//! lives in the sandbox too, so that separate programs share it.

mod files;
mod machine;
mod marks;
mod memory;
mod searching;
mod shell;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sdk::Sandbox;
use serde_json::Value;

use crate::dispatch::{Core, Ids, OverwriteGuard, ToolDispatcher, Watch};
use crate::result::ToolResult;
use crate::screenshots::Screenshots;
use machine::SandboxMachine;

/// The session of who names none.
const SESSION: &str = "default";
/// Where the first command runs.
const ROOT: &str = "/home/user";

/// Runs the tools on a sandbox.
///
/// Directory, exported variables, what was read and background tasks belong to a session. Dispatchers with the same
/// session on the same sandbox share them, also from different programs at the same time.
pub struct SandboxToolDispatcher {
    core: Core<SandboxMachine>,
}

impl SandboxToolDispatcher {
    /// On the sandbox's default session.
    pub fn new(sandbox: Sandbox) -> Self {
        Self { core: Core::new(SandboxMachine::new(sandbox, SESSION, ROOT), Ids::Random) }
    }

    /// On a session of that name. Characters other than letters, digits, `.`, `_` and `-` are replaced.
    #[must_use]
    pub fn session(mut self, name: &str) -> Self {
        let safe = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
        let name: String = name.chars().take(64).map(safe).collect();
        let name = if name.trim_matches('.').is_empty() { SESSION.to_owned() } else { name };
        self.core.machine.set_session(&name);
        self
    }

    /// Where the first command of a session runs, and where commands go on whose directory is gone.
    #[must_use]
    pub fn root(mut self, directory: impl Into<String>) -> Self {
        self.core.machine.set_root(directory.into());
        self
    }

    /// Whether `write_file` may replace what was not read.
    #[must_use]
    pub fn overwrite_guard(mut self, guard: OverwriteGuard) -> Self {
        self.core.guard = guard;
        self
    }

    /// Where `take_screenshot` gets its pictures; without it the tool says that there is no browser.
    #[must_use]
    pub fn screenshots(mut self, screenshots: Arc<dyn Screenshots>) -> Self {
        self.core.screenshots = Some(screenshots);
        self
    }

    /// The port that `take_screenshot` captures unless told otherwise; 3000 unless set.
    #[must_use]
    pub fn preview_port(mut self, port: u16) -> Self {
        self.core.preview_port = port;
        self
    }
}

impl fmt::Debug for SandboxToolDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxToolDispatcher").field("machine", &self.core.machine).finish_non_exhaustive()
    }
}

#[async_trait]
impl ToolDispatcher for SandboxToolDispatcher {
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let mut result = self.core.dispatch(tool_name, tool_input, watch).await;
        self.core.machine.settle().await;
        if self.core.machine.was_resumed()
            && let Value::Object(fields) = &mut result.structured
        {
            fields.insert("sandbox_resumed".into(), Value::Bool(true));
        }
        result
    }

    async fn close(&self) {
        self.core.close().await;
    }
}
