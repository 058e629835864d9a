//! The workspaces of this program: connects configuration, records, objects, providers, this
//! machine's server, screenshots and messages for people.

use super::auto_screenshots::{self, DueScreenshot, ScreenshotTask, WorkspaceScreenshots};
use super::progress::Progress;
use super::timeline::Timeline;
use crate::config::{self, Config, Overrides};
use crate::endpoint::{self, Endpoint};
use crate::local_server::{LocalFinder, LocalStarter, OwnEndpoint};
use crate::screenshots::ScreenshotService;
use agent::workspace_tools;
use anyhow::anyhow;
use browser::store::Occasion;
use clap::Args;
use cli::values;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tools::SandboxToolDispatcher;
use workspace::events::Observer;
use workspace::provider::{LocalEndpoint, LocalServer};
use workspace::{OpenError, Settings, Workspace, WorkspaceName, WorkspaceView, Workspaces};

/// How long a user waits for a workspace before a message says why.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Screenshots whose URLs are printed at the end of work.
const LAST_SCREENSHOTS: usize = 4;

/// The flag for commands that have no [`WorkspaceLocation`].
#[derive(Args)]
pub(crate) struct Wait {
    /// How long to wait for a workspace that another process has
    #[arg(long, value_name = "SECONDS", value_parser = values::duration, default_value = "20s")]
    pub(crate) wait: Duration,
}

/// The flags that select the workspaces: configuration, data directory and lease timeout.
#[derive(Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct WorkspaceLocation {
    /// Configuration file [default: $XDG_CONFIG_HOME/sandbar/config.toml]
    #[arg(long, global = true, value_name = "FILE", env = "SANDBAR_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The data directory of the local server [default: $SANDBAR_DATA, else $XDG_DATA_HOME/sandbar]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// How long to wait for a workspace that another process has
    #[arg(long, global = true, value_name = "SECONDS", value_parser = values::duration, default_value = "20s")]
    pub(crate) wait: Duration,
}

/// All workspaces of this program's configuration, and those that this process has open.
pub(crate) struct WorkspaceApp {
    workspaces: Workspaces,
    screenshots: Arc<ScreenshotService>,
    screenshot_task: ScreenshotTask,
    progress: Progress,
    timeline: Arc<Timeline>,
    /// Workspaces whose leases this process holds, until [`WorkspaceApp::leave`].
    entered: Mutex<Vec<Workspace>>,
}

impl WorkspaceApp {
    /// Opens the workspaces. `silent` hides the progress bar, for results that programs read.
    pub(crate) async fn open(location: &WorkspaceLocation, silent: bool) -> anyhow::Result<Self> {
        let overrides = Overrides { data: location.data.clone(), ..Overrides::default() };
        let config = Config::load(location.config.as_deref(), &overrides)?;
        let settings = Settings { lease_timeout: location.wait, ..Settings::default() };
        Self::from_config(&config, starter(&config, location.config.as_deref())?, settings, silent).await
    }

    /// Opens the workspaces for queries: uses a running local server, and never starts one.
    pub(crate) async fn open_without_start(location: &WorkspaceLocation) -> anyhow::Result<Self> {
        let overrides = Overrides { data: location.data.clone(), ..Overrides::default() };
        let config = Config::load(location.config.as_deref(), &overrides)?;
        Self::from_config(&config, Arc::new(LocalFinder::new(&config)), Settings::default(), true).await
    }

    /// Opens the workspaces for a command with the flags of [`Endpoint`], without progress bar.
    pub(crate) async fn for_endpoint(endpoint: &Endpoint, wait: Duration) -> anyhow::Result<Self> {
        let config = endpoint.config()?;
        let local = starter(&config, endpoint::config_file().as_deref())?;
        Self::from_config(&config, local, Settings { lease_timeout: wait, ..Settings::default() }, true).await
    }

    /// Opens the workspaces in the server's own process, which is the local provider.
    pub(crate) async fn for_server(config: &Config, own_endpoint: LocalEndpoint) -> anyhow::Result<Self> {
        Self::from_config(config, Arc::new(OwnEndpoint(own_endpoint)), Settings::default(), true).await
    }

    async fn from_config(
        config: &Config,
        local: Arc<dyn LocalServer>,
        settings: Settings,
        silent: bool,
    ) -> anyhow::Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let progress = Progress::new(silent);
        let timeline = Arc::new(Timeline::new(progress.clone(), sender));
        let observer = Arc::clone(&timeline) as Arc<dyn Observer>;
        let workspaces = config.workspaces()?;
        let workspaces = Workspaces::from_config(&workspaces, &config::variable, &local, observer, settings).await?;
        let screenshots = ScreenshotService::new(config);
        let screenshot_task =
            ScreenshotTask::start(receiver, Arc::clone(&screenshots), workspaces.clone(), progress.clone());
        Ok(Self { workspaces, screenshots, screenshot_task, progress, timeline, entered: Mutex::default() })
    }

    pub(crate) fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    /// Reads the record of a workspace. Sends no request to a provider, and resumes nothing.
    pub(crate) async fn inspect(&self, name: &WorkspaceName) -> anyhow::Result<WorkspaceView> {
        self.workspaces.show(name).await.map_err(explain)
    }

    /// The tools on a workspace that this process has open. Screenshots are of `port` unless a call
    /// names another one.
    pub(crate) fn tools(&self, workspace: &Workspace, port: Option<u16>) -> SandboxToolDispatcher {
        let name = workspace.name().clone();
        let provider = WorkspaceScreenshots::new(Arc::clone(&self.screenshots), self.workspaces.clone(), name);
        let tools = workspace_tools(workspace.clone()).screenshots(Arc::new(provider));
        match port {
            Some(port) => tools.preview_port(port),
            None => tools,
        }
    }

    /// Shows the current step in the progress bar.
    pub(crate) fn show_step(&self, what: String) {
        self.progress.show_step(what);
    }

    /// From here on this process takes no automatic screenshots.
    pub(crate) fn defer_screenshots(&self) {
        self.timeline.defer_screenshots();
    }

    /// Whether any became due since [`WorkspaceApp::defer_screenshots`].
    pub(super) fn has_deferred_screenshots(&self) -> bool {
        self.timeline.has_deferred_screenshots()
    }

    /// Takes the screenshots that are due after the start of a dev server.
    pub(super) async fn take_screenshots(&self, name: &WorkspaceName) {
        let at = jiff::Timestamp::now();
        let due =
            DueScreenshot { workspace: name.clone(), sandbox: None, port: None, occasion: Occasion::DevServer { at } };
        auto_screenshots::take(&self.screenshots, &self.workspaces, &self.progress, due).await;
    }

    /// The observer of all events since this was opened.
    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Opens a workspace for this process, which holds its lease until [`WorkspaceApp::leave`].
    pub(crate) async fn enter(&self, name: &WorkspaceName) -> anyhow::Result<Workspace> {
        self.progress.show_step(format!("opening workspace {name}"));
        let mut opening = pin!(self.workspaces.open(name));
        let opened = match tokio::time::timeout(NOTICE_DELAY, &mut opening).await {
            Ok(opened) => opened,
            Err(_) => {
                self.progress.print_line(&format!("workspace {name} is in use by another process; waiting for it"));
                opening.await
            }
        };
        let workspace = opened.map_err(explain)?;
        self.take(workspace.clone()).await;
        Ok(workspace)
    }

    /// Adds a workspace that was just created to those that this process has open.
    pub(super) async fn take(&self, workspace: Workspace) {
        self.entered.lock().await.push(workspace);
    }

    /// Ends the work in a workspace: pauses it unless it is to keep running, and prints the URLs of
    /// preview and screenshots.
    pub(crate) async fn finish(&self, workspace: &Workspace, port: Option<u16>, end_action: EndAction) {
        let name = workspace.name();
        let preview = match port {
            Some(port) => auto_screenshots::preview(&self.workspaces, name, port).await,
            None => None,
        };
        match end_action {
            EndAction::KeepRunning => {
                eprintln!("sandbar: workspace {name} runs on; `sandbar workspace pause {name}` pauses it");
            }
            EndAction::Pause => match workspace.pause().await {
                Ok(()) => eprintln!("sandbar: workspace {name} is paused; `sandbar workspace resume {name}` wakes it"),
                Err(error) => {
                    eprintln!("sandbar: workspace {name} could not be paused: {:#}", anyhow::Error::new(error));
                }
            },
        }
        if let Some(url) = preview {
            let when = if end_action == EndAction::Pause { " (once it is awake)" } else { "" };
            eprintln!("sandbar: preview: {url}{when}");
        }
        let screenshots = self.screenshots.stored_urls();
        for url in &screenshots[screenshots.len().saturating_sub(LAST_SCREENSHOTS)..] {
            eprintln!("sandbar: screenshot: {url}");
        }
    }

    /// Closes all open workspaces, which releases their leases.
    pub(crate) async fn leave(&self) {
        for workspace in self.entered.lock().await.drain(..) {
            workspace.close().await;
        }
    }

    /// Takes or skips the screenshots that are due. None is taken afterwards.
    pub(crate) async fn finish_screenshots(&self, due: DueScreenshots) {
        match due {
            DueScreenshots::Take => self.screenshot_task.finish().await,
            DueScreenshots::Skip => self.screenshot_task.stop().await,
        }
    }

    /// Releases all leases, takes or skips the screenshots that are due, and ends the browser.
    pub(crate) async fn close(&self, due: DueScreenshots) {
        self.leave().await;
        self.finish_screenshots(due).await;
        self.progress.done();
        self.screenshots.close().await;
    }
}

/// Finds or starts this machine's server.
fn starter(config: &Config, file: Option<&Path>) -> anyhow::Result<Arc<dyn LocalServer>> {
    Ok(Arc::new(LocalStarter::new(config, file)?))
}

/// What happens to a workspace when the work in it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndAction {
    Pause,
    KeepRunning,
}

impl EndAction {
    pub(crate) fn new(keep_running: bool) -> Self {
        if keep_running { Self::KeepRunning } else { Self::Pause }
    }
}

/// What happens to screenshots that are due when the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueScreenshots {
    Take,
    /// The user stopped the program.
    Skip,
}

/// Adds what to do to an error.
pub(crate) fn explain(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::NotFound(name) => {
            anyhow!("there is no workspace {name}; `sandbar workspace list` shows those there are")
        }
        OpenError::Held { workspace, owner, .. } => {
            anyhow!(
                "workspace {workspace} is in use by {owner}; try again when it has done, or wait longer with --wait"
            )
        }
        other => other.into(),
    }
}
