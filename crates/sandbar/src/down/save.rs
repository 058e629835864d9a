//! What `sandbar down` does first: the files of workspaces whose sandboxes are about to end are saved, so that each comes
//! back with all of them.

use crate::config::{Config, Overrides};
use crate::data::ServerNote;
use crate::local_server::{LocalFinder, LocalStarter};
use crate::sandbox::show::printable;
use crate::studio;
use crate::workspace::house::{Due, House, Place};
use anyhow::Context as _;
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

/// For the server to list its sandboxes.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Workspaces that are saved at once: one that cannot be saved, or is large, holds up few others.
const AT_ONCE: usize = 4;

/// Why somebody else's workspace is not saved.
pub(super) const UNKNOWN: &str = "this user's records know no such workspace";

/// Why one is not saved of which nobody wanted it.
pub(super) const AS_ASKED: &str = "--yes";

/// A workspace whose files are in a snapshot.
#[derive(Debug, Serialize)]
pub(super) struct Saved {
    pub(super) workspace: WorkspaceName,
    #[serde(rename = "sandboxID")]
    pub(super) sandbox: String,
    pub(super) snapshot: String,
}

/// A sandbox whose files nobody has.
#[derive(Debug, Serialize)]
pub(super) struct Unsaved {
    pub(super) workspace: String,
    #[serde(rename = "sandboxID")]
    pub(super) sandbox: String,
    pub(super) reason: String,
}

impl Unsaved {
    /// Nobody wanted it to be saved.
    pub(super) fn as_asked(row: &ListedSandbox, ephemeral: bool) -> Self {
        let reason = if ephemeral { "the server is ephemeral" } else { AS_ASKED };
        Self { workspace: named(row), sandbox: row.sandbox_id.clone(), reason: reason.to_owned() }
    }
}

impl fmt::Display for Unsaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workspace, sandbox, reason } = self;
        write!(f, "workspace {} in sandbox {}: {}", printable(workspace), printable(sandbox), printable(reason))
    }
}

fn named(row: &ListedSandbox) -> String {
    row.metadata.get(METADATA).cloned().unwrap_or_default()
}

/// Whose workspaces are saved.
pub(super) struct Target {
    pub(super) place: Place,
    /// The studio's, where its server was given one.
    pub(super) database: Option<Secret>,
}

/// How it went.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) saved: Vec<Saved>,
    pub(super) unsaved: Vec<Unsaved>,
}

/// The server's sandboxes that are workspaces' own.
pub(super) async fn sandboxes(server: &ServerNote) -> anyhow::Result<Vec<ListedSandbox>> {
    let builder = Client::builder().ignore_environment().api_key(server.api_key.as_str()).api_url(&server.url);
    let client = builder.sandbox_url(&server.url).deadline(ANSWER_TIME).build()?;
    let all: Vec<ListedSandbox> = client.list(ListQuery::new()).try_collect().await?;
    Ok(all.into_iter().filter(|row| row.metadata.contains_key(METADATA)).collect())
}

/// Starts the server of a data directory, if the records know of workspaces on this machine: without a server their files
/// cannot be reached. Says whether it did.
pub(super) async fn start_server(config: &Config, target: &Target) -> anyhow::Result<bool> {
    let place = &target.place;
    let house = House::open(place, true).await.context("cannot look for workspaces; --yes does without")?;
    let views = house.workspaces().list().await;
    house.close(Due::LeftOut).await;
    let mut views = views?;
    if let Some(studio) = studio_of(target, Search::Start).await? {
        views.extend(studio.list().await?);
    }
    let local = config.local_providers()?;
    if !views.iter().any(|view| view.sandbox.is_some() && local.contains(&view.provider)) {
        return Ok(false);
    }
    let started = LocalStarter::new(config, place.config.as_deref())?.endpoint().await;
    started.context("workspaces cannot be saved without a server; --yes ends them unsaved")?;
    Ok(true)
}

/// Saves the workspaces that these sandboxes belong to. What cannot be saved is said, and nothing is ended.
pub(super) async fn save(target: &Target, rows: Vec<ListedSandbox>, silent: bool) -> anyhow::Result<Kept> {
    let house =
        House::open(&target.place, silent).await.context("cannot look for the workspaces of these sandboxes")?;
    let kept = match studio_of(target, Search::Start).await {
        Ok(studio) => save_in(&house, studio.as_ref(), rows).await,
        Err(error) => Err(error),
    };
    house.close(Due::LeftOut).await;
    kept
}

/// How the server of this machine is come by.
#[derive(Clone, Copy)]
enum Search {
    /// It is started when there is none.
    Start,
    Look,
}

/// The studio of this server keeps the workspaces of its jobs in records of its own.
async fn studio_of(target: &Target, server: Search) -> anyhow::Result<Option<Workspaces>> {
    let Target { place, database } = target;
    let overrides = Overrides { data: place.data.clone(), ..Overrides::default() };
    let config = Config::load(place.config.as_deref(), &overrides)?;
    let local: Arc<dyn LocalServer> = match server {
        Search::Start => Arc::new(LocalStarter::new(&config, place.config.as_deref())?),
        Search::Look => Arc::new(LocalFinder::new(&config)),
    };
    let settings = Settings { lease_wait: place.wait, ..Settings::default() };
    studio::workspaces_of(&config, &local, settings, database.as_ref()).await
}

async fn save_in(house: &House, studio: Option<&Workspaces>, rows: Vec<ListedSandbox>) -> anyhow::Result<Kept> {
    let orphans = house.workspaces().orphans().await?;
    let orphans: HashSet<String> = orphans.into_iter().map(|orphan| orphan.sandbox).collect();
    let mut kept = Kept::default();
    let saves = rows.into_iter().filter(|row| !orphans.contains(&row.sandbox_id)).map(|row| async move {
        let named = named(&row);
        let saved = match studio {
            Some(studio) if is_known(studio, &named).await? => save_build(studio, &named, &row.sandbox_id).await,
            _ => save_one(house, &named, &row.sandbox_id).await,
        };
        anyhow::Ok((row, named, saved))
    });
    let mut saves = futures::stream::iter(saves).buffered(AT_ONCE);
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

/// None when there is nothing of anybody's in it.
async fn save_one(house: &House, named: &str, sandbox: &str) -> anyhow::Result<Option<Saved>> {
    let name: WorkspaceName = named.parse()?;
    let view = match house.workspaces().show(&name).await {
        Ok(view) => view,
        Err(OpenError::NotFound(_)) => anyhow::bail!(UNKNOWN),
        Err(error) => return Err(error.into()),
    };
    if view.state == WorkspaceState::SettingUp {
        return Ok(None);
    }
    let workspace = house.enter(&name).await?;
    // Whoever had it until now may have put it into another sandbox.
    let own = house.workspaces().show(&name).await?;
    if !is_in(&own, sandbox) && !is_in(&view, sandbox) {
        anyhow::bail!("the workspace is in another sandbox, and this one may have newer files");
    }
    house.doing(format!("saving the files of {name}"));
    let saved = workspace.keep_files().await?;
    Ok(saved.map(|stamp| Saved { workspace: name, sandbox: sandbox.to_owned(), snapshot: stamp.to_string() }))
}

async fn is_known(studio: &Workspaces, named: &str) -> anyhow::Result<bool> {
    let Ok(name) = named.parse() else { return Ok(false) };
    match studio.show(&name).await {
        Ok(_) => Ok(true),
        Err(OpenError::NotFound(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The same for a build of the studio's. One that is being built is somebody's, and is not taken away from them.
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

/// A sandbox that is no more.
struct Ended<'a> {
    workspace: String,
    sandbox: &'a str,
    files: LastFiles,
}

/// Notes in this user's records and in the studio's which sandboxes are no more: they cost nothing from now on. What cannot be noted
/// is found out when the workspace is next used.
pub(super) async fn note_ended(target: &Target, kept: &Kept) {
    let saved = kept.saved.iter().map(|Saved { workspace, sandbox, .. }| {
        let files = LastFiles::Saved;
        Ended { workspace: workspace.to_string(), sandbox, files }
    });
    let unsaved = kept.unsaved.iter().map(|Unsaved { workspace, sandbox, .. }| {
        let files = LastFiles::Unsaved;
        Ended { workspace: workspace.clone(), sandbox, files }
    });
    let ended: Vec<Ended<'_>> = saved.chain(unsaved).collect();
    if ended.is_empty() {
        return;
    }
    match House::looking(&target.place).await {
        Ok(house) => {
            note_in(house.workspaces(), &ended).await;
            house.close(Due::LeftOut).await;
        }
        Err(error) => warn!(error = format!("{error:#}"), "the end of sandboxes was not noted"),
    }
    match studio_of(target, Search::Look).await {
        Ok(Some(studio)) => note_in(&studio, &ended).await,
        Ok(None) => {}
        Err(error) => warn!(error = format!("{error:#}"), "the end of the studio's sandboxes was not noted"),
    }
}

/// Notes it of the workspaces that these records know.
async fn note_in(workspaces: &Workspaces, ended: &[Ended<'_>]) {
    for Ended { workspace, sandbox, files } in ended {
        let noted = async {
            let name: WorkspaceName = workspace.parse()?;
            match workspaces.show(&name).await {
                Ok(view) if is_in(&view, sandbox) => {}
                // Another user's, or another one of that name.
                Ok(_) | Err(OpenError::NotFound(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            let opened = workspaces.open(&name).await?;
            let noted = opened.note_ended(sandbox, *files).await;
            opened.close().await;
            Ok::<_, anyhow::Error>(noted?)
        };
        if let Err(error) = noted.await {
            warn!(workspace, error = format!("{error:#}"), "the end of its sandbox was not noted");
        }
    }
}
