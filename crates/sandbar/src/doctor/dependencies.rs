//! Checks what workspaces need beyond this machine's sandboxes: providers, records and objects. The
//! checks start no server and create nothing.

use crate::config::{self, Config};
use crate::local_server::LocalStarter;
use crate::workspace::queries::describe_orphan;
use checkpoint::{Checkpoints, Objects, ProjectId, Stamp};
use cli::show::printable;
use data_directory::FoundServer;
use futures::TryStreamExt as _;
use futures::future::join_all;
use sdk::{Client, ListQuery, Secret};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use workspace::config::{ProviderConfig, ProviderKind, WorkspaceConfig};
use workspace::provider::{LocalServer, Provider};
use workspace::records::{DatabaseRecords, OrphanRecords as _};

/// A service that does not answer within this time counts as absent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A dependency of workspaces, and whether it can be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Dependency {
    /// `provider`, `records`, `objects` or `trash`.
    pub(super) what: &'static str,
    pub(super) name: String,
    pub(super) ok: bool,
    pub(super) found: String,
}

/// Checks all dependencies concurrently.
pub(super) async fn check_all(config: &Config, file: Option<&Path>) -> Vec<Dependency> {
    let workspaces = match config.workspaces() {
        Ok(workspaces) => workspaces,
        Err(error) => return vec![Dependency::new("provider", "configuration", Err(format!("{error:#}")))],
    };
    let providers = workspaces.providers.iter().map(|provider| check_provider(config, file, provider));
    let (mut dependencies, records, objects, trash) = tokio::join!(
        join_all(providers),
        with_timeout(check_records(&workspaces)),
        with_timeout(check_objects(&workspaces)),
        with_timeout(check_trash(config))
    );
    dependencies.push(Dependency::new("trash", "this machine", trash));
    dependencies.push(Dependency::new(
        "records",
        workspaces.records.url.as_deref().unwrap_or("(a variable has it)"),
        records,
    ));
    dependencies.push(Dependency::new("objects", workspaces.objects.url.as_deref().unwrap_or_default(), objects));
    dependencies
}

/// A snapshot that has the variables of its workspace in plain text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ExposedSnapshot {
    workspace: String,
    snapshot: String,
    /// The command that deletes it.
    pub(super) fix: String,
}

/// A store of snapshots that was not searched whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct NotSearched {
    pub(super) store: String,
    pub(super) why: String,
}

/// The result of the search for such snapshots.
#[derive(Debug, Default)]
pub(super) struct ExposedSearch {
    pub(super) found: Vec<ExposedSnapshot>,
    pub(super) not_searched: Vec<NotSearched>,
}

/// Searches the store of workspaces, and that of the studio where it has one of its own.
pub(super) async fn find_exposed(config: &Config) -> ExposedSearch {
    let Ok(WorkspaceConfig { objects, .. }) = config.workspaces() else { return ExposedSearch::default() };
    let url = objects.url.clone().unwrap_or_default();
    let of_workspaces = async {
        match url.strip_prefix("file://").is_some_and(|directory| !Path::new(directory).exists()) {
            true => ExposedSearch::default(),
            false => search(&url, objects.open(&config::variable).map_err(text), None).await,
        }
    };
    let studio = crate::studio::own_objects(config);
    let of_studio = async {
        match &studio {
            Some(directory) => {
                let name = directory.display().to_string();
                search(&name, Objects::disk(directory).map_err(text), Some(&name)).await
            }
            None => ExposedSearch::default(),
        }
    };
    let (mut search, ExposedSearch { found, not_searched }) = tokio::join!(of_workspaces, of_studio);
    search.found.extend(found);
    search.not_searched.extend(not_searched);
    search
}

/// Searches one store. `directory` is the option of the commands that delete what is found.
async fn search(store: &str, objects: Result<Objects, String>, directory: Option<&str>) -> ExposedSearch {
    let mut found = Vec::new();
    let searched = with_timeout(async {
        let objects = objects?.within(ANSWER_TIMEOUT);
        Checkpoints::new(objects).find_environment_files(&mut found).await.map_err(text)?;
        Ok(String::new())
    });
    let why = searched.await.err();
    let option = directory.map(|directory| format!(" --store {}", quote(directory))).unwrap_or_default();
    let one = |(project, stamp): (ProjectId, Stamp)| ExposedSnapshot {
        fix: format!("sandbar workspace snapshots {project} --delete {stamp}{option}"),
        workspace: project.to_string(),
        snapshot: stamp.to_string(),
    };
    let not_searched = why.map(|why| NotSearched { store: printable(store), why: printable(&why) });
    ExposedSearch { found: found.into_iter().map(one).collect(), not_searched: not_searched.into_iter().collect() }
}

/// Quotes a path for a shell where it needs that.
fn quote(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    match path.bytes().all(is_plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}

impl Dependency {
    fn new(what: &'static str, name: &str, found: Result<String, String>) -> Self {
        let (ok, found) = found.map_or_else(|why| (false, why), |found| (true, found));
        Self { what, name: printable(name), ok, found: printable(&found) }
    }
}

async fn with_timeout(check: impl Future<Output = Result<String, String>>) -> Result<String, String> {
    let late = |_| Err(format!("no answer within {} seconds", ANSWER_TIMEOUT.as_secs()));
    tokio::time::timeout(ANSWER_TIMEOUT, check).await.unwrap_or_else(late)
}

async fn check_provider(config: &Config, file: Option<&Path>, provider: &ProviderConfig) -> Dependency {
    let found = match provider.kind {
        ProviderKind::Local => check_local_server(config),
        ProviderKind::E2b => with_timeout(check_service(config, file, provider)).await,
    };
    Dependency::new("provider", provider.name.as_str(), found)
}

fn check_local_server(config: &Config) -> Result<String, String> {
    match data_directory::find_server(&config.data) {
        Ok(FoundServer::Serving(note)) => Ok(format!("this machine; the server answers at {}", note.url)),
        Ok(FoundServer::Busy) => Ok("this machine; the server is just starting or stopping".to_owned()),
        Ok(FoundServer::Absent | FoundServer::Dead { .. }) => match data_directory::expected_server(&config.data) {
            Some(expected) => Err(format!("this machine; its server does not run: `{}` starts it", expected.command)),
            None => Ok("this machine; a server is started when it is needed".to_owned()),
        },
        Err(error) => Err(format!("cannot look into {}: {error}", config.data.display())),
    }
}

/// Counts the files of the local server that no record names.
async fn check_trash(config: &Config) -> Result<String, String> {
    let Ok(FoundServer::Serving(note)) = data_directory::find_server(&config.data) else {
        return Ok("no server runs that could tell".to_owned());
    };
    let client = Client::builder().ignore_environment().api_key(note.api_key).api_url(&note.url).sandbox_url(&note.url);
    let rows = client.build().map_err(text)?.within(ANSWER_TIMEOUT).trash().await.map_err(text)?;
    let bytes: u64 = rows.iter().filter_map(|row| row.bytes).sum();
    match rows.len() {
        0 => Ok("empty: a record names every file of the pool".to_owned()),
        count => Ok(format!(
            "{count} that no record names, {} MiB on the disk; `sandbar recover` lists them and brings them back",
            bytes.div_ceil(1 << 20)
        )),
    }
}

async fn check_service(config: &Config, file: Option<&Path>, provider: &ProviderConfig) -> Result<String, String> {
    let local: Arc<dyn LocalServer> = Arc::new(LocalStarter::new(config, file).map_err(text)?);
    let client = Provider::new(provider.clone(), &config::variable, &local).client().await.map_err(text)?;
    let mut listed = std::pin::pin!(client.within(ANSWER_TIMEOUT).list(ListQuery::new()));
    listed.try_next().await.map_err(text)?;
    Ok(format!("answers at {}", client.api_url()))
}

async fn check_records(workspaces: &WorkspaceConfig) -> Result<String, String> {
    let location: Secret = workspaces.records.location(&config::variable).map_err(text)?;
    if let Some(file) = location.expose().strip_prefix("sqlite://")
        && !Path::new(file).exists()
    {
        return Ok("not there yet; made when they are needed".to_owned());
    }
    let records = DatabaseRecords::open(&location).await.map_err(text)?;
    let orphans = records.orphans().await.map_err(text)?;
    records.close().await.map_err(text)?;
    let orphans: String = orphans.iter().map(|orphan| format!("; {}", describe_orphan(orphan))).collect();
    Ok(format!("can be read{orphans}"))
}

async fn check_objects(workspaces: &WorkspaceConfig) -> Result<String, String> {
    let directory = workspaces.objects.url.as_deref().and_then(|url| url.strip_prefix("file://"));
    if directory.is_some_and(|directory| !Path::new(directory).exists()) {
        return Ok("not there yet; made when they are needed".to_owned());
    }
    let objects = workspaces.objects.open(&config::variable).map_err(text)?;
    objects.within(ANSWER_TIMEOUT).conditional_puts().await.map_err(text)?;
    Ok("can be written".to_owned())
}

/// An error with its causes.
fn text(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
