//! Saves the files of workspaces before `sandbar down` ends their sandboxes, so that each can be
//! restored with all its files.

use crate::config::{Config, Overrides};
use crate::local_server::{LocalFinder, LocalStarter};
use crate::studio;
use crate::workspace::app::{DueScreenshots, WorkspaceApp, WorkspaceLocation};
use anyhow::Context as _;
use cli::show::printable;
use data_directory::ServerNote;
use futures::{StreamExt as _, TryStreamExt as _};
use sdk::model::ListedSandbox;
use sdk::{Client, ListQuery, Secret};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;
use workspace::provider::LocalServer;
use workspace::records::WorkspaceState;
use workspace::{LastFiles, METADATA, OpenError, Settings, WorkspaceName, WorkspaceView, Workspaces};

/// For the server's answer to a list request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Workspaces that are saved concurrently, so that a large or a failing one delays few others.
const MAX_CONCURRENT: usize = 4;

/// The reason for a workspace of another user.
pub(super) const UNKNOWN: &str = "this user's records know no such workspace";

/// The reason for a workspace that the caller did not want to save.
pub(super) const AS_ASKED: &str = "--yes";

/// A workspace whose files are in a snapshot.
#[derive(Debug, Serialize)]
pub(super) struct Saved {
    pub(super) workspace: WorkspaceName,
    #[serde(rename = "sandboxID")]
    pub(super) sandbox: String,
    pub(super) snapshot: String,
}

/// A sandbox whose files are not in a snapshot.
#[derive(Debug, Serialize)]
pub(super) struct Unsaved {
    pub(super) workspace: String,
    #[serde(rename = "sandboxID")]
    pub(super) sandbox: String,
    pub(super) reason: String,
}

impl Unsaved {
    /// The caller, or an ephemeral server, did not want it to be saved.
    pub(super) fn from_request(row: &ListedSandbox, ephemeral: bool) -> Self {
        let reason = if ephemeral { "the server is ephemeral" } else { AS_ASKED };
        Self { workspace: workspace_of(row), sandbox: row.sandbox_id.clone(), reason: reason.to_owned() }
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workspace, sandbox, reason } = self;
        write!(f, "workspace {} in sandbox {}: {}", printable(workspace), printable(sandbox), printable(reason))
    }
}

fn workspace_of(row: &ListedSandbox) -> String {
    row.metadata.get(METADATA).cloned().unwrap_or_default()
}

/// The records whose workspaces are saved.
pub(super) struct SaveTarget {
    pub(super) location: WorkspaceLocation,
    /// Databases of studios besides the one in the data directory.
    pub(super) databases: Vec<Secret>,
}

/// What was saved, and what was not.
#[derive(Debug, Default)]
pub(super) struct SaveReport {
    pub(super) saved: Vec<Saved>,
    pub(super) unsaved: Vec<Unsaved>,
}

/// Lists the server's sandboxes that belong to workspaces.
pub(super) async fn list_workspace_sandboxes(server: &ServerNote) -> anyhow::Result<Vec<ListedSandbox>> {
    let builder = Client::builder().ignore_environment().api_key(server.api_key.as_str()).api_url(&server.url);
    let client = builder.sandbox_url(&server.url).deadline(ANSWER_TIMEOUT).build()?;
    let all: Vec<ListedSandbox> = client.list(ListQuery::new()).try_collect().await?;
    Ok(all.into_iter().filter(|row| row.metadata.contains_key(METADATA)).collect())
}

/// Starts the server of a data directory if the records have workspaces on this machine: their
/// files can be read through a server only. Returns whether it did.
pub(super) async fn start_server(config: &Config, target: &SaveTarget) -> anyhow::Result<bool> {
    let location = &target.location;
    let app = WorkspaceApp::open(location, true).await.context("cannot look for workspaces; --yes does without")?;
    let views = app.workspaces().list().await;
    app.close(DueScreenshots::Skip).await;
    let mut views = views?;
    for studio in open_studio_workspaces(target, ServerSearch::Start).await? {
        views.extend(studio.list().await?);
    }
    let local = config.local_providers()?;
    if !views.iter().any(|view| view.sandbox.is_some() && local.contains(&view.provider)) {
        return Ok(false);
    }
    let started = LocalStarter::new(config, location.config.as_deref())?.endpoint().await;
    started.context("workspaces cannot be saved without a server; --yes ends them unsaved")?;
    Ok(true)
}

/// Saves the workspaces of these sandboxes, and reports those that cannot be saved. Ends nothing.
pub(super) async fn save(target: &SaveTarget, rows: Vec<ListedSandbox>, silent: bool) -> anyhow::Result<SaveReport> {
    let app = WorkspaceApp::open(&target.location, silent)
        .await
        .context("cannot look for the workspaces of these sandboxes")?;
    let kept = match open_studio_workspaces(target, ServerSearch::Start).await {
        Ok(studios) => save_in(&app, &studios, rows).await,
        Err(error) => Err(error),
    };
    app.close(DueScreenshots::Skip).await;
    kept
}

/// How the server of this machine is found.
#[derive(Clone, Copy)]
enum ServerSearch {
    /// Starts a server if none runs.
    Start,
    FindOnly,
}

/// Opens the workspaces of the jobs of each studio, which have their own records.
async fn open_studio_workspaces(target: &SaveTarget, server: ServerSearch) -> anyhow::Result<Vec<Workspaces>> {
    let SaveTarget { location, databases } = target;
    let overrides = Overrides { data: location.data.clone(), ..Overrides::default() };
    let config = Config::load(location.config.as_deref(), &overrides)?;
    let local: Arc<dyn LocalServer> = match server {
        ServerSearch::Start => Arc::new(LocalStarter::new(&config, location.config.as_deref())?),
        ServerSearch::FindOnly => Arc::new(LocalFinder::new(&config)),
    };
    let settings = Settings { lease_timeout: location.wait, ..Settings::default() };
    let mut opened = Vec::new();
    let mut known: HashSet<&str> = HashSet::new();
    for database in std::iter::once(None).chain(databases.iter().map(Some)) {
        if database.is_none_or(|url| known.insert(url.expose())) {
            let settings = settings.clone();
            opened.extend(studio::open_workspaces(&config, &local, settings, database).await?);
        }
    }
    Ok(opened)
}

async fn save_in(app: &WorkspaceApp, studios: &[Workspaces], rows: Vec<ListedSandbox>) -> anyhow::Result<SaveReport> {
    let orphans = app.workspaces().orphans().await?;
    let orphans: HashSet<String> = orphans.into_iter().map(|orphan| orphan.sandbox).collect();
    let mut kept = SaveReport::default();
    let saves = rows.into_iter().filter(|row| !orphans.contains(&row.sandbox_id)).map(|row| async move {
        let named = workspace_of(&row);
        let saved = match find_studio(studios, &named).await? {
            Some(studio) => save_build(studio, &named, &row.sandbox_id).await,
            None => save_one(app, &named, &row.sandbox_id).await,
        };
        anyhow::Ok((row, named, saved))
    });
    let mut saves = futures::stream::iter(saves).buffered(MAX_CONCURRENT);
    while let Some(done) = saves.next().await {
        let (row, named, saved) = done?;
        match saved {
            Ok(None) => {}
            Ok(Some(saved)) => kept.saved.push(saved),
            Err(error) => {
                kept.unsaved.push(Unsaved { workspace: named, sandbox: row.sandbox_id, reason: format!("{error:#}") });
            }
        }
    }
    Ok(kept)
}

/// Saves a workspace; [`None`] when it has no files worth saving.
async fn save_one(app: &WorkspaceApp, named: &str, sandbox: &str) -> anyhow::Result<Option<Saved>> {
    let name: WorkspaceName = named.parse()?;
    let view = match app.workspaces().show(&name).await {
        Ok(view) => view,
        Err(OpenError::NotFound(_)) => anyhow::bail!(UNKNOWN),
        Err(error) => return Err(error.into()),
    };
    if view.state == WorkspaceState::SettingUp {
        return Ok(None);
    }
    let workspace = app.enter(&name).await?;
    // The process that had the lease before may have moved it to another sandbox.
    let own = app.workspaces().show(&name).await?;
    if !is_in(&own, sandbox) && !is_in(&view, sandbox) {
        anyhow::bail!("the workspace is in another sandbox, and this one may have newer files");
    }
    app.show_step(format!("saving the files of {name}"));
    let saved = workspace.keep_files().await?;
    Ok(saved.map(|stamp| Saved { workspace: name, sandbox: sandbox.to_owned(), snapshot: stamp.to_string() }))
}

/// The studio whose records have this workspace.
async fn find_studio<'a>(studios: &'a [Workspaces], named: &str) -> anyhow::Result<Option<&'a Workspaces>> {
    let Ok(name) = named.parse() else { return Ok(None) };
    for studio in studios {
        match studio.show(&name).await {
            Ok(_) => return Ok(Some(studio)),
            Err(OpenError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Saves the workspace of a studio's job. The lease of a job that is being built is not taken from
/// its worker.
async fn save_build(studio: &Workspaces, named: &str, sandbox: &str) -> anyhow::Result<Option<Saved>> {
    let name: WorkspaceName = named.parse()?;
    let workspace = studio.open(&name).await?;
    let saved = workspace.keep_files().await;
    workspace.close().await;
    Ok(saved?.map(|stamp| Saved { workspace: name, sandbox: sandbox.to_owned(), snapshot: stamp.to_string() }))
}

fn is_in(view: &WorkspaceView, sandbox: &str) -> bool {
    view.sandbox.as_deref() == Some(sandbox)
}

/// A sandbox that was ended.
struct EndedSandbox<'a> {
    workspace: String,
    sandbox: &'a str,
    files: LastFiles,
}

/// Records in this user's records and in the studio's which sandboxes were ended, so that they cost
/// nothing from now on. A failure is logged; the next use of the workspace finds the end by itself.
pub(super) async fn record_ended(target: &SaveTarget, kept: &SaveReport) {
    let saved = kept.saved.iter().map(|Saved { workspace, sandbox, .. }| {
        let files = LastFiles::Saved;
        EndedSandbox { workspace: workspace.to_string(), sandbox, files }
    });
    let unsaved = kept.unsaved.iter().map(|Unsaved { workspace, sandbox, .. }| {
        let files = LastFiles::Unsaved;
        EndedSandbox { workspace: workspace.clone(), sandbox, files }
    });
    let ended: Vec<EndedSandbox<'_>> = saved.chain(unsaved).collect();
    if ended.is_empty() {
        return;
    }
    match WorkspaceApp::open_without_start(&target.location).await {
        Ok(app) => {
            record_ended_in(app.workspaces(), &ended).await;
            app.close(DueScreenshots::Skip).await;
        }
        Err(error) => warn!(error = format!("{error:#}"), "the end of sandboxes was not noted"),
    }
    match open_studio_workspaces(target, ServerSearch::FindOnly).await {
        Ok(studios) => {
            for studio in &studios {
                record_ended_in(studio, &ended).await;
            }
        }
        Err(error) => warn!(error = format!("{error:#}"), "the end of the studio's sandboxes was not noted"),
    }
}

/// Records the end of sandboxes of the workspaces that these records have.
async fn record_ended_in(workspaces: &Workspaces, ended: &[EndedSandbox<'_>]) {
    for EndedSandbox { workspace, sandbox, files } in ended {
        let noted = async {
            let name: WorkspaceName = workspace.parse()?;
            match workspaces.show(&name).await {
                Ok(view) if is_in(&view, sandbox) => {}
                // Another user's workspace, or another one of that name.
                Ok(_) | Err(OpenError::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let opened = workspaces.open(&name).await?;
            let noted = opened.record_killed(sandbox, *files).await;
            opened.close().await;
            Ok::<_, anyhow::Error>(noted?)
        };
        if let Err(error) = noted.await {
            warn!(workspace, error = format!("{error:#}"), "the end of its sandbox was not noted");
        }
    }
}
