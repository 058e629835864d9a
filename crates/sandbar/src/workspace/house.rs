//! Joins the parts of workspaces to this program: configuration, records, objects, providers and this machine's server,
//! pictures and what people are told.

use super::photographs::{self, Photographer, Previews, Wanted};
use super::progress::Progress;
use super::timeline::Timeline;
use crate::config::{self, Config, Overrides};
use crate::local_server::{LocalFinder, LocalStarter, Ourselves};
use crate::sandbox::endpoint::{self, Endpoint};
use crate::sandbox::values;
use crate::screenshots::Pictures;
use anyhow::anyhow;
use browser::store::Occasion;
use clap::Args;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tools::SandboxToolDispatcher;
use workspace::events::Observer;
use workspace::provider::{LocalEndpoint, LocalServer};
use workspace::{OpenError, Settings, Workspace, WorkspaceName, WorkspaceView, Workspaces};

/// How long somebody waits without being told what for.
const UNTOLD: Duration = Duration::from_secs(1);

/// Screenshots that are named at the end of work.
const LAST_SCREENSHOTS: usize = 4;

/// How long a workspace is waited for that another process has.
#[derive(Args)]
pub(crate) struct Wait {
    /// How long to wait for a workspace that another process has
    #[arg(long, value_name = "SECONDS", value_parser = values::duration, default_value = "20s")]
    pub(crate) wait: Duration,
}

/// Which workspaces are meant.
#[derive(Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct Place {
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

/// All workspaces that this program's configuration leads to.
pub(crate) struct House {
    workspaces: Workspaces,
    pictures: Arc<Pictures>,
    photographer: Photographer,
    progress: Progress,
    timeline: Arc<Timeline>,
    /// This process's own until it leaves.
    entered: Mutex<Vec<Workspace>>,
}

impl House {
    /// `silent` shows no progress, for results that programs read.
    pub(crate) async fn open(place: &Place, silent: bool) -> anyhow::Result<Self> {
        let overrides = Overrides { data: place.data.clone(), ..Overrides::default() };
        let config = Config::load(place.config.as_deref(), &overrides)?;
        let settings = Settings { lease_wait: place.wait, ..Settings::default() };
        Self::of(&config, starter(&config, place.config.as_deref())?, settings, silent).await
    }

    /// For those who only look: no server is started for them.
    pub(crate) async fn looking(place: &Place) -> anyhow::Result<Self> {
        let overrides = Overrides { data: place.data.clone(), ..Overrides::default() };
        let config = Config::load(place.config.as_deref(), &overrides)?;
        Self::of(&config, Arc::new(LocalFinder::new(&config)), Settings::default(), true).await
    }

    /// For those who have flags of their own and nothing to say about workspaces.
    pub(crate) async fn quiet(endpoint: &Endpoint, wait: Duration) -> anyhow::Result<Self> {
        let config = endpoint.config()?;
        let local = starter(&config, endpoint::config_file().as_deref())?;
        Self::of(&config, local, Settings { lease_wait: wait, ..Settings::default() }, true).await
    }

    /// For the server itself, which is then the local provider's.
    pub(crate) async fn of_server(config: &Config, ourselves: LocalEndpoint) -> anyhow::Result<Self> {
        Self::of(config, Arc::new(Ourselves(ourselves)), Settings::default(), true).await
    }

    async fn of(
        config: &Config,
        local: Arc<dyn LocalServer>,
        settings: Settings,
        silent: bool,
    ) -> anyhow::Result<Self> {
        let (wanted, due) = mpsc::unbounded_channel();
        let progress = Progress::new(silent);
        let timeline = Arc::new(Timeline::new(progress.clone(), wanted));
        let observer = Arc::clone(&timeline) as Arc<dyn Observer>;
        let workspaces = config.workspaces()?;
        let workspaces = Workspaces::from_config(&workspaces, &config::variable, &local, observer, settings).await?;
        let pictures = Pictures::new(config);
        let photographer = Photographer::start(due, Arc::clone(&pictures), workspaces.clone(), progress.clone());
        Ok(Self { workspaces, pictures, photographer, progress, timeline, entered: Mutex::default() })
    }

    pub(crate) fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    /// What is known of a workspace. Nobody is asked, and nothing woken.
    pub(crate) async fn look(&self, name: &WorkspaceName) -> anyhow::Result<WorkspaceView> {
        self.workspaces.show(name).await.map_err(explain)
    }

    /// The tools on a workspace, which is this process's own. Pictures are of `port` unless a call says otherwise.
    pub(crate) fn tools(&self, workspace: &Workspace, port: Option<u16>) -> SandboxToolDispatcher {
        let name = workspace.name().clone();
        let previews = Previews::new(Arc::clone(&self.pictures), self.workspaces.clone(), name);
        let tools = SandboxToolDispatcher::on_workspace(workspace.clone()).screenshots(Arc::new(previews));
        match port {
            Some(port) => tools.preview_port(port),
            None => tools,
        }
    }

    /// What is being done, for people who watch.
    pub(crate) fn doing(&self, what: String) {
        self.progress.doing(what);
    }

    /// From here on nobody takes the pictures that become due.
    pub(crate) fn leave_pictures(&self) {
        self.timeline.leave_pictures();
    }

    /// Whether any became due since.
    pub(super) fn pictures_left(&self) -> bool {
        self.timeline.pictures_left()
    }

    /// Takes the pictures that are due after the start of a dev server.
    pub(super) async fn photograph(&self, name: &WorkspaceName) {
        let at = jiff::Timestamp::now();
        let wanted =
            Wanted { workspace: name.clone(), sandbox: None, port: None, occasion: Occasion::DevServer { at } };
        photographs::take(&self.pictures, &self.workspaces, &self.progress, wanted).await;
    }

    /// What happened since the house was opened.
    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Takes a workspace for this process, until it leaves.
    pub(crate) async fn enter(&self, name: &WorkspaceName) -> anyhow::Result<Workspace> {
        self.progress.doing(format!("opening workspace {name}"));
        let mut opening = pin!(self.workspaces.open(name));
        let opened = match tokio::time::timeout(UNTOLD, &mut opening).await {
            Ok(opened) => opened,
            Err(_) => {
                self.progress.tell(&format!("workspace {name} is in use by another process; waiting for it"));
                opening.await
            }
        };
        let workspace = opened.map_err(explain)?;
        self.take(workspace.clone()).await;
        Ok(workspace)
    }

    /// The same for one that was just created.
    pub(super) async fn take(&self, workspace: Workspace) {
        self.entered.lock().await.push(workspace);
    }

    /// What is done at the end of work in a workspace: it is paused unless it is to run on, and
    /// people are told where everything is.
    pub(crate) async fn finish(&self, workspace: &Workspace, port: Option<u16>, ending: Ending) {
        let name = workspace.name();
        let preview = match port {
            Some(port) => photographs::preview(&self.workspaces, name, port).await,
            None => None,
        };
        match ending {
            Ending::KeepRunning => {
                eprintln!("sandbar: workspace {name} runs on; `sandbar workspace pause {name}` pauses it");
            }
            Ending::Pause => match workspace.pause().await {
                Ok(()) => eprintln!("sandbar: workspace {name} is paused; `sandbar workspace resume {name}` wakes it"),
                Err(error) => {
                    eprintln!("sandbar: workspace {name} could not be paused: {:#}", anyhow::Error::new(error));
                }
            },
        }
        if let Some(url) = preview {
            let when = if ending == Ending::Pause { " (once it is awake)" } else { "" };
            eprintln!("sandbar: preview: {url}{when}");
        }
        let screenshots = self.pictures.stored();
        for url in &screenshots[screenshots.len().saturating_sub(LAST_SCREENSHOTS)..] {
            eprintln!("sandbar: screenshot: {url}");
        }
    }

    /// Gives every lease back.
    pub(crate) async fn leave(&self) {
        for workspace in self.entered.lock().await.drain(..) {
            workspace.close().await;
        }
    }

    /// Takes the screenshots that are due, or leaves them out. None is taken afterwards.
    pub(crate) async fn finish_screenshots(&self, due: Due) {
        match due {
            Due::Taken => self.photographer.finish().await,
            Due::LeftOut => self.photographer.stop().await,
        }
    }

    /// Gives every lease back, and takes the pictures that are due.
    pub(crate) async fn close(&self, due: Due) {
        self.leave().await;
        self.finish_screenshots(due).await;
        self.progress.done();
        self.pictures.close().await;
    }
}

/// This machine's server, found or started.
fn starter(config: &Config, file: Option<&Path>) -> anyhow::Result<Arc<dyn LocalServer>> {
    Ok(Arc::new(LocalStarter::new(config, file)?))
}

/// What becomes of a workspace when the work in it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Pause,
    KeepRunning,
}

impl Ending {
    pub(crate) fn new(keep_running: bool) -> Self {
        if keep_running { Self::KeepRunning } else { Self::Pause }
    }
}

/// What becomes of pictures that are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Taken,
    /// Somebody wants this program to end.
    LeftOut,
}

/// The error with what to do about it.
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
