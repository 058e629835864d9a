//! Automatic pictures: after the dev server's start and after every commit. They never hold up or fail what they are of, wake
//! nothing, and need no lease: a picture of a sandbox that is replaced meanwhile is one picture less.

use super::progress::Progress;
use crate::screenshots::Pictures;
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
use tools::{Capture, CaptureError, Screenshots, Shots};
use tracing::{debug, info, warn};
use workspace::{WorkspaceName, WorkspaceView, Workspaces};

/// Where a page is looked for when no dev server is declared.
const USUAL_PORT: u16 = 3000;
/// For asking the sandbox whether anybody listens.
const ASK: Duration = Duration::from_secs(10);
/// From a dev server's start in a new sandbox until the workspace is there.
const TAKE_PLACE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// For the pictures that are due when the program wants to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A picture that is due.
pub(super) struct Wanted {
    pub(super) workspace: WorkspaceName,
    /// None: whichever the workspace is in.
    pub(super) sandbox: Option<String>,
    /// None: the declared dev server's, else the usual one.
    pub(super) port: Option<u16>,
    pub(super) occasion: Occasion,
}

pub(super) type Due = mpsc::UnboundedReceiver<Wanted>;

/// Takes pictures as they become due.
pub(super) struct Photographer {
    task: Mutex<Option<JoinHandle<()>>>,
    finish: CancellationToken,
}

impl Photographer {
    pub(super) fn start(mut due: Due, pictures: Arc<Pictures>, workspaces: Workspaces, progress: Progress) -> Self {
        let finish = CancellationToken::new();
        let asked = finish.clone();
        let task = tokio::spawn(async move {
            while let Some(Some(wanted)) = asked.run_until_cancelled(due.recv()).await {
                take(&pictures, &workspaces, &progress, wanted).await;
            }
            while let Ok(wanted) = due.try_recv() {
                take(&pictures, &workspaces, &progress, wanted).await;
            }
        });
        Self { task: Mutex::new(Some(task)), finish }
    }

    /// Takes what is due, and no more.
    pub(super) async fn finish(&self) {
        self.finish.cancel();
        let Some(mut task) = self.task.lock().await.take() else { return };
        if tokio::time::timeout(PATIENCE, &mut task).await.is_err() {
            warn!("a picture took too long and is left out");
            task.abort();
        }
    }

    /// Leaves out what is due.
    pub(super) async fn stop(&self) {
        if let Some(task) = self.task.lock().await.take() {
            task.abort();
        }
    }
}

pub(super) async fn take(pictures: &Pictures, workspaces: &Workspaces, progress: &Progress, wanted: Wanted) {
    let Wanted { workspace: name, sandbox, port, occasion } = wanted;
    let seen = async {
        let view = view_in(workspaces, &name, sandbox.as_deref()).await?;
        let port = port.or(view.dev_server.as_ref().map(|server| server.port)).unwrap_or(USUAL_PORT);
        let Some(sandbox) = running(workspaces, &view).await? else {
            debug!(workspace = %name, "it does not run, so there is nothing to take a picture of");
            return Ok(());
        };
        if !listens(&sandbox, port).await {
            debug!(workspace = %name, port, "nobody listens, so there is nothing to take a picture of");
            return Ok(());
        }
        progress.doing(format!("taking pictures of {name}"));
        let capture = Capture { port, url_path: "/".to_owned(), full_page: false };
        match pictures.capture(&sandbox, name.as_str(), &occasion, capture).await {
            Ok(shots) => {
                for shot in shots.shots {
                    info!(workspace = %name, viewport = shot.viewport, key = shot.key, "an automatic picture is stored");
                }
                Ok(())
            }
            Err(CaptureError::NotServed { .. }) => Ok(()),
            Err(error) => Err(anyhow::Error::new(error)),
        }
    };
    if let Err(error) = seen.await {
        warn!(workspace = %name, error = format!("{error:#}"), "no automatic picture could be taken");
    }
}

/// What is known of the workspace once it is in the sandbox. Its dev server answers there before it takes the old one's place.
async fn view_in(
    workspaces: &Workspaces,
    name: &WorkspaceName,
    sandbox: Option<&str>,
) -> anyhow::Result<WorkspaceView> {
    let deadline = Instant::now() + TAKE_PLACE;
    loop {
        let view = workspaces.show(name).await?;
        if sandbox.is_none() || view.sandbox.as_deref() == sandbox {
            return Ok(view);
        }
        if Instant::now() >= deadline {
            anyhow::bail!("it never came to be in the sandbox of which a picture is due");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What an agent asks for in a workspace. Whoever calls a tool is inside its fence, so that the sandbox runs and stays.
pub(crate) struct Previews {
    pictures: Arc<Pictures>,
    workspaces: Workspaces,
    name: WorkspaceName,
}

impl Previews {
    pub(crate) fn new(pictures: Arc<Pictures>, workspaces: Workspaces, name: WorkspaceName) -> Self {
        Self { pictures, workspaces, name }
    }

    async fn sandbox(&self) -> anyhow::Result<Sandbox> {
        let view = self.workspaces.show(&self.name).await?;
        running(&self.workspaces, &view).await?.context("the workspace does not run")
    }
}

#[async_trait]
impl Screenshots for Previews {
    async fn capture(&self, capture: Capture) -> Result<Shots, CaptureError> {
        let sandbox = self.sandbox().await.map_err(|error| CaptureError::Failed(format!("{error:#}")))?;
        let occasion = Occasion::Agent { at: jiff::Timestamp::now() };
        self.pictures.capture(&sandbox, self.name.as_str(), &occasion, capture).await
    }
}

/// The workspace's sandbox as it is.
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

/// Where people see what a workspace serves on a port; none where it does not run or nothing
/// listens.
pub(super) async fn preview(workspaces: &Workspaces, name: &WorkspaceName, port: u16) -> Option<String> {
    let view = workspaces.show(name).await.ok()?;
    let sandbox = running(workspaces, &view).await.ok()??;
    listens(&sandbox, port).await.then(|| sandbox.url(port))
}

/// Whether it is worth starting a browser.
async fn listens(sandbox: &Sandbox, port: u16) -> bool {
    let line = format!("exec 3<>/dev/tcp/127.0.0.1/{port} || exec 3<>/dev/tcp/::1/{port}");
    let command = sdk::Command::exec("/bin/bash", ["-c", &line]).timeout(ASK);
    sandbox.within(ASK).commands().run(command).await.is_ok_and(|output| output.success())
}
