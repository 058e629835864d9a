//! The tools on a sandbox, through nothing but E2B's own API where there is no more: files, and processes started in it. What
//! a session remembers lives in the sandbox too, so that separate programs share it.

mod files;
mod machine;
mod marks;
mod memory;
mod searching;
mod shell;
mod source;
mod visit;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use sdk::Sandbox;
use serde_json::Value;
use workspace::Workspace;
use workspace::setup::PROJECT_DIRECTORY;

use crate::dispatch::{Core, Ids, OverwriteGuard, Progress, ToolDispatcher, Watch};
use crate::live::Said;
use crate::port::{Ground, PortError, Visit};
use crate::result::ToolResult;
use crate::screenshots::Screenshots;
use machine::{SHARED, SandboxMachine, Setting};
use source::{OfWorkspace, Single, Source};
use visit::SandboxVisit;

/// The session of who names none.
const SESSION: &str = "default";
/// Where the first command runs in a sandbox.
const ROOT: &str = "/home/user";
/// Where sessions of a workspace live: in what is saved, so that they go with it from sandbox to sandbox.
const SAVED: &str = "/home/user/.sandbar";

/// Runs the tools on a sandbox, or on whichever sandbox a workspace is in.
///
/// Directory, exported variables, what was read and background tasks belong to a session. Dispatchers with the same
/// session on the same sandbox share them, also from different programs at the same time.
pub struct SandboxToolDispatcher {
    core: Core,
    source: Arc<dyn Source>,
    setting: Setting,
    /// The sandbox of the last call, and whatever was found out about it.
    machine: Mutex<Option<Arc<SandboxMachine>>>,
}

impl SandboxToolDispatcher {
    /// On the sandbox's default session. When the sandbox is paused a call wakes it.
    pub fn new(sandbox: Sandbox) -> Self {
        Self::on(Arc::new(Single::new(sandbox)), SHARED, ROOT)
    }

    /// On the workspace's default session. Calls wait while the workspace changes its sandbox, and go on in the new one; what
    /// did not survive is told once.
    pub fn on_workspace(workspace: Workspace) -> Self {
        Self::on(Arc::new(OfWorkspace(workspace)), SAVED, PROJECT_DIRECTORY)
    }

    fn on(source: Arc<dyn Source>, base: &'static str, root: &str) -> Self {
        let setting = Setting { base, session: SESSION.to_owned(), root: root.to_owned() };
        Self { core: Core::new(Ids::Random), source, setting, machine: Mutex::default() }
    }

    /// On a session of that name. Characters other than letters, digits, `.`, `_` and `-` are replaced.
    #[must_use]
    pub fn session(mut self, name: &str) -> Self {
        let safe = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
        let name: String = name.chars().take(64).map(safe).collect();
        self.setting.session = if name.trim_matches('.').is_empty() { SESSION.to_owned() } else { name };
        self
    }

    /// Where the first command of a session runs, and where commands go on whose directory is gone.
    #[must_use]
    pub fn root(mut self, directory: impl Into<String>) -> Self {
        self.setting.root = directory.into();
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

    async fn visit(&self) -> Result<SandboxVisit, PortError> {
        let entry = self.source.enter(&self.setting.session).await?;
        let mut known = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        // What was found out about another sandbox does not hold for this one.
        let same = known.as_ref().filter(|machine| machine.epoch() == entry.epoch).cloned();
        let replaced = known.is_some() && same.is_none();
        let machine = same.unwrap_or_else(|| {
            Arc::new(SandboxMachine::new(entry.sandbox.clone(), entry.epoch, Arc::clone(&self.source), &self.setting))
        });
        *known = Some(Arc::clone(&machine));
        drop(known);
        Ok(SandboxVisit::new(machine, entry, replaced))
    }

    /// The watch, told nothing that must not be shown.
    fn masked(&self, mut watch: Watch) -> Watch {
        if let Some(told) = watch.progress.take() {
            let source = Arc::clone(&self.source);
            watch.progress = Some(Arc::new(move |mut progress: Progress| {
                source.mask(&mut progress.last_line);
                told(progress);
            }));
        }
        if let Some(told) = watch.output.take() {
            let source = Arc::clone(&self.source);
            watch.output = Some(Arc::new(move |mut said: Said| {
                source.mask(&mut said.text);
                told(said);
            }));
        }
        watch
    }
}

impl fmt::Debug for SandboxToolDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxToolDispatcher")
            .field("source", &self.source)
            .field("setting", &self.setting)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Ground for SandboxToolDispatcher {
    async fn enter(&self) -> Result<Box<dyn Visit>, PortError> {
        Ok(Box::new(self.visit().await?))
    }
}

#[async_trait]
impl ToolDispatcher for SandboxToolDispatcher {
    async fn dispatch_watched(&self, tool_name: &str, tool_input: Value, watch: Watch) -> ToolResult {
        let mut result = self.core.dispatch(self, tool_name, tool_input, self.masked(watch)).await;
        source::mask_result(self.source.as_ref(), &mut result);
        result
    }

    async fn close(&self) {
        let closed = match self.visit().await {
            Ok(visit) => visit.close().await,
            Err(error) => Err(error),
        };
        if let Err(error) = closed {
            tracing::debug!(%error, "a session could not be closed");
        }
    }
}
