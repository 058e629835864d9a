//! Automatic screenshots, after the start of a dev server and after every commit. They never delay
//! or fail the operation that caused them, resume nothing, and take no lease: a screenshot of a
//! sandbox that is replaced meanwhile is skipped.

use super::progress::Progress;
use crate::screenshots::ScreenshotService;
use anyhow::Context as _;
use async_trait::async_trait;
use browser::store::Occasion;
use sdk::Sandbox;
use sdk::model::SandboxState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tools::{ScreenshotError, ScreenshotProvider, ScreenshotRequest, ScreenshotSet};
use tracing::{debug, info, warn};
use workspace::{WorkspaceName, WorkspaceView, Workspaces};

/// The port of the page when no dev server is declared.
const USUAL_PORT: u16 = 3000;
/// For asking the sandbox whether a process listens on the port.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// From the start of a dev server in a new sandbox until the workspace has switched to it.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// For the screenshots that are due when the program ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// A screenshot that is due.
pub(super) struct DueScreenshot {
    pub(super) workspace: WorkspaceName,
    /// [`None`]: the workspace's current sandbox.
    pub(super) sandbox: Option<String>,
    /// [`None`]: the declared dev server's, else [`USUAL_PORT`].
    pub(super) port: Option<u16>,
    pub(super) occasion: Occasion,
}

pub(super) type DueReceiver = mpsc::UnboundedReceiver<DueScreenshot>;

/// The background task that takes screenshots as they become due.
pub(super) struct ScreenshotTask {
    task: Mutex<Option<JoinHandle<()>>>,
    finish: CancellationToken,
}

impl ScreenshotTask {
    pub(super) fn start(
        mut receiver: DueReceiver,
        screenshots: Arc<ScreenshotService>,
        workspaces: Workspaces,
        progress: Progress,
    ) -> Self {
        let finish = CancellationToken::new();
        let asked = finish.clone();
        let task = tokio::spawn(async move {
            while let Some(Some(due)) = asked.run_until_cancelled(receiver.recv()).await {
                take(&screenshots, &workspaces, &progress, due).await;
            }
            while let Ok(due) = receiver.try_recv() {
                take(&screenshots, &workspaces, &progress, due).await;
            }
        });
        Self { task: Mutex::new(Some(task)), finish }
    }

    /// Takes the screenshots that are due, and ends the task.
    pub(super) async fn finish(&self) {
        self.finish.cancel();
        let Some(mut task) = self.task.lock().await.take() else { return };
        if tokio::time::timeout(FINISH_TIMEOUT, &mut task).await.is_err() {
            warn!("a picture took too long and is left out");
            task.abort();
        }
    }

    /// Aborts the task without taking the screenshots that are due.
    pub(super) async fn stop(&self) {
        if let Some(task) = self.task.lock().await.take() {
            task.abort();
        }
    }
}

pub(super) async fn take(
    screenshots: &ScreenshotService,
    workspaces: &Workspaces,
    progress: &Progress,
    due: DueScreenshot,
) {
    let DueScreenshot { workspace: name, sandbox, port, occasion } = due;
    let work = async {
        let view = view_in(workspaces, &name, sandbox.as_deref()).await?;
        let port = port.or(view.dev_server.as_ref().map(|server| server.port)).unwrap_or(USUAL_PORT);
        let Some(sandbox) = running(workspaces, &view).await? else {
            debug!(workspace = %name, "it does not run, so there is nothing to take a picture of");
            return Ok(());
        };
        if !listens(&sandbox, port).await {
            debug!(workspace = %name, port, "no process listens, so there is nothing to take a picture of");
            return Ok(());
        }
        progress.show_step(format!("taking pictures of {name}"));
        let capture = ScreenshotRequest { port, url_path: "/".to_owned(), full_page: false };
        match screenshots.capture(&sandbox, name.as_str(), &occasion, capture).await {
            Ok(shots) => {
                for shot in shots.screenshots {
                    info!(workspace = %name, viewport = shot.viewport, key = shot.key, "an automatic picture is stored");
                }
                Ok(())
            }
            Err(ScreenshotError::NotServed { .. }) => Ok(()),
            Err(error) => Err(anyhow::Error::new(error)),
        }
    };
    if let Err(error) = work.await {
        warn!(workspace = %name, error = format!("{error:#}"), "no automatic picture could be taken");
    }
}

/// Waits until the workspace's record names the sandbox. The dev server of a new sandbox answers
/// before the handover is recorded.
async fn view_in(
    workspaces: &Workspaces,
    name: &WorkspaceName,
    sandbox: Option<&str>,
) -> anyhow::Result<WorkspaceView> {
    let deadline = Instant::now() + HANDOVER_TIMEOUT;
    loop {
        let view = workspaces.show(name).await?;
        if sandbox.is_none() || view.sandbox.as_deref() == sandbox {
            return Ok(view);
        }
        if Instant::now() >= deadline {
            anyhow::bail!("it never came to be in the sandbox of which a picture is due");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Screenshots for the tools of a workspace. The caller of a tool holds the workspace's guard, so
/// that the sandbox runs and is not replaced.
pub(crate) struct WorkspaceScreenshots {
    screenshots: Arc<ScreenshotService>,
    workspaces: Workspaces,
    name: WorkspaceName,
}

impl WorkspaceScreenshots {
    pub(crate) fn new(screenshots: Arc<ScreenshotService>, workspaces: Workspaces, name: WorkspaceName) -> Self {
        Self { screenshots, workspaces, name }
    }

    async fn sandbox(&self) -> anyhow::Result<Sandbox> {
        let view = self.workspaces.show(&self.name).await?;
        running(&self.workspaces, &view).await?.context("the workspace does not run")
    }
}

#[async_trait]
impl ScreenshotProvider for WorkspaceScreenshots {
    async fn capture(&self, capture: ScreenshotRequest) -> Result<ScreenshotSet, ScreenshotError> {
        let sandbox = self.sandbox().await.map_err(|error| ScreenshotError::Failed(format!("{error:#}")))?;
        let occasion = Occasion::Agent { at: jiff::Timestamp::now() };
        self.screenshots.capture(&sandbox, self.name.as_str(), &occasion, capture).await
    }
}

/// The workspace's sandbox; [`None`] if it has none or it is paused. Does not resume it.
async fn running(workspaces: &Workspaces, view: &WorkspaceView) -> anyhow::Result<Option<Sandbox>> {
    let Some(id) = &view.sandbox else { return Ok(None) };
    let id = id.parse().context("the record cannot be used")?;
    let client = workspaces.orchestrator().provider(&view.provider)?.client().await?;
    let detail = client.info(&id).await?;
    Ok(match detail.listed.state {
        SandboxState::Running => Some(client.attach(&detail)?),
        SandboxState::Paused => None,
    })
}

/// The URL of a port of a workspace; [`None`] if it does not run or no process listens.
pub(super) async fn preview(workspaces: &Workspaces, name: &WorkspaceName, port: u16) -> Option<String> {
    let view = workspaces.show(name).await.ok()?;
    let sandbox = running(workspaces, &view).await.ok()??;
    listens(&sandbox, port).await.then(|| sandbox.url(port))
}

/// Whether a process in the sandbox listens on the port.
async fn listens(sandbox: &Sandbox, port: u16) -> bool {
    let line = format!("exec 3<>/dev/tcp/127.0.0.1/{port} || exec 3<>/dev/tcp/::1/{port}");
    let command = sdk::Command::exec("/bin/bash", ["-c", &line]).timeout(PROBE_TIMEOUT);
    sandbox.within(PROBE_TIMEOUT).commands().run(command).await.is_ok_and(|output| output.success())
}
