//! Opens the studio for a program: its records, its first user and its worker.

use super::host::LocalHost;
use super::models::Models;
use crate::agent::Prices;
use crate::config::{self, Config};
use ::studio::records::{AddUserError, Records};
use ::studio::rest::RestOptions;
use ::studio::token::{TokenDigest, new_token};
use ::studio::{Settings, Studio, StudioHost};
use agent::model::ModelChoice;
use anyhow::Context as _;
use data_directory::STUDIO;
use sdk::Secret;
use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use workspace::Workspaces;
use workspace::config::{RecordsConfig, WorkspaceConfig};
use workspace::events::NoopObserver;
use workspace::provider::LocalServer;
use workspace::records::DatabaseRecords;

/// The user that the first server creates.
pub(super) const FIRST_USER: &str = "owner";
const TOKEN: &str = "token";
/// The variable of the database. A value of the flag `--database` is passed under this name too.
const DATABASE: &str = "SANDBAR_DATABASE";

/// The configuration of the studio's workspaces. Records and objects are in the server's data
/// directory by default, since the sandboxes of its jobs are that server's.
fn workspace_config(config: &Config, database: Option<&Secret>) -> anyhow::Result<WorkspaceConfig> {
    let records = match database {
        // A configuration must not have a password, which the database's URL may have.
        Some(_) => RecordsConfig { url: None, url_env: Some(DATABASE.to_owned()) },
        None => config.records.clone(),
    };
    let workspaces = WorkspaceConfig {
        providers: config.providers.clone(),
        objects: config.objects.clone(),
        records,
        budgets: config.budgets.clone(),
        ..WorkspaceConfig::default()
    };
    config.unify_local_provider(workspaces.resolve(&directory(config), &config::variable)?)
}

/// Reads the environment, with the given database as [`DATABASE`].
fn variables(database: Option<&Secret>) -> impl Fn(&str) -> Option<String> + Sync {
    let database = database.cloned();
    move |name| match &database {
        Some(url) if name == DATABASE => Some(url.expose().to_owned()),
        _ => config::variable(name),
    }
}

/// The directory of the snapshots of the studio's jobs; [`None`] where they are in the configured
/// store, or where there are none.
pub(crate) fn own_objects(config: &Config) -> Option<PathBuf> {
    let directory = directory(config).join("objects");
    (config.objects.url.is_none() && directory.is_dir()).then_some(directory)
}

fn directory(config: &Config) -> PathBuf {
    config.data.join(STUDIO)
}

/// Opens the records only, to manage users.
pub(super) async fn records(config: &Config, database: Option<&Secret>) -> anyhow::Result<Records> {
    let url = workspace_config(config, database)?.records.location(&variables(database))?;
    Records::open(&url).await.context("the studio's records cannot be opened")
}

/// The usage of the studio's jobs.
pub(crate) struct StudioUsage {
    /// URL of the database.
    pub(crate) location: Secret,
    pub(crate) records: DatabaseRecords,
    /// Names of projects by workspace.
    pub(crate) projects: HashMap<String, String>,
}

/// The URL of the studio's records; [`None`] where no studio was ever opened.
fn location(config: &Config, database: Option<&Secret>) -> anyhow::Result<Option<Secret>> {
    let url = workspace_config(config, database)?.records.location(&variables(database))?;
    let file = url.expose().strip_prefix("sqlite://").and_then(|rest| rest.split('?').next());
    let there = match file {
        Some(file) => fs::exists(file).with_context(|| format!("{file} cannot be read"))?,
        None => true,
    };
    Ok(there.then_some(url))
}

/// Opens the workspaces of the studio's jobs; [`None`] where no studio was ever opened.
pub(crate) async fn open_workspaces(
    config: &Config,
    local: &Arc<dyn LocalServer>,
    settings: workspace::Settings,
    database: Option<&Secret>,
) -> anyhow::Result<Option<Workspaces>> {
    if location(config, database)?.is_none() {
        return Ok(None);
    }
    let (workspaces, variables) = (workspace_config(config, database)?, variables(database));
    let opened = Workspaces::from_config(&workspaces, &variables, local, Arc::new(NoopObserver), settings).await;
    Ok(Some(opened.context("the studio's workspaces cannot be opened")?))
}

/// Opens the usage of the studio's jobs; [`None`] where no studio was ever opened.
pub(crate) async fn open_usage(config: &Config, database: Option<&Secret>) -> anyhow::Result<Option<StudioUsage>> {
    let Some(url) = location(config, database)? else { return Ok(None) };
    let studio = Records::open(&url).await.context("the studio's records cannot be opened")?;
    let projects = studio.project_names().await?;
    studio.close().await?;
    let records = DatabaseRecords::open(&url).await.context("the studio's book cannot be opened")?;
    Ok(Some(StudioUsage { location: url, records, projects }))
}

/// Options of the studio.
pub(crate) struct StudioOptions {
    pub(crate) database: Option<Secret>,
    /// Directory of scripted models.
    pub(crate) scripts: Option<PathBuf>,
    /// Models that users can choose; the first one is the default.
    pub(crate) models: Vec<ModelChoice>,
    /// Builds that run concurrently.
    pub(crate) builds: usize,
}

/// The studio of this process, and its worker.
pub(crate) struct StudioRuntime {
    pub(crate) studio: Studio,
    /// Token of the first user, if this process knows it.
    pub(crate) token: Option<Secret>,
    host: Arc<LocalHost>,
    /// Domains of the providers' previews.
    domains: Vec<String>,
    stop: CancellationToken,
    worker: Option<JoinHandle<()>>,
}

impl StudioRuntime {
    pub(crate) async fn open(
        config: &Config,
        local: &Arc<dyn LocalServer>,
        options: &StudioOptions,
    ) -> anyhow::Result<Self> {
        let database = options.database.as_ref();
        let (workspaces, variables) = (workspace_config(config, database)?, variables(database));
        let url = workspaces.records.location(&variables)?;
        let models = Models::new(options.scripts.as_deref(), &options.models, Prices::new(&config.models)?)
            .context("the directory of scripts cannot be used")?;
        let host = Arc::new(LocalHost::open(config, &workspaces, &variables, local, models).await?);
        let settings = Settings { builds: options.builds, ..Settings::default() };
        let credits = settings.first_credits;
        let studio = Studio::open(&url, Arc::clone(&host) as Arc<dyn StudioHost>, settings).await?;
        let token = first_token(studio.records(), &directory(config), credits).await?;
        let domains = workspaces.providers.iter().filter_map(|provider| provider.domain.clone()).collect();
        Ok(Self { studio, token, host, domains, stop: CancellationToken::new(), worker: None })
    }

    /// The workspaces of its jobs.
    pub(crate) fn workspaces(&self) -> &Workspaces {
        self.host.workspaces()
    }

    /// Options of the REST API. Pages may frame the previews of every provider and of this
    /// machine's server, which are below `own`. If `host` is given, only this host serves pages and
    /// sessions.
    pub(crate) fn rest_options(&self, own: &str, host: Option<&str>) -> RestOptions {
        let rest_options = RestOptions { host: host.map(str::to_owned), ..RestOptions::default() };
        self.domains.iter().map(String::as_str).chain([own]).fold(rest_options, RestOptions::with_preview_domain)
    }

    /// Starts the worker. The server that provides its sandboxes must be running.
    pub(crate) fn start_worker(&mut self) {
        self.worker = Some(tokio::spawn(::studio::work(self.studio.clone(), self.stop.clone())));
    }

    /// Stops the worker and closes the studio. Another worker resumes the jobs that were being
    /// built.
    pub(crate) async fn close(&mut self) {
        self.stop.cancel();
        if let Some(worker) = self.worker.take()
            && let Err(error) = worker.await
        {
            warn!(%error, "the worker broke off");
        }
        self.studio.close().await;
        self.host.close().await;
    }
}

/// The first user's token, which is created with the user and stored in the data directory, like
/// the server's key. [`None`] if another process created the users and has the token.
async fn first_token(records: &Records, directory: &Path, credits: i64) -> anyhow::Result<Option<Secret>> {
    let file = directory.join(TOKEN);
    match fs::read_to_string(&file) {
        Ok(token) => {
            let token = token.trim().to_owned();
            let known = match TokenDigest::from_token(&token) {
                Some(digest) => records.user_by_token(&digest).await?.is_some(),
                None => false,
            };
            if known {
                return Ok(Some(Secret::from(token)));
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
    if records.has_users().await? {
        return Ok(None);
    }
    let token = new_token();
    let digest = TokenDigest::from_token(token.expose()).context("a new token has the form of one")?;
    // The file is written before the user is added: a token without a user is harmless, but a user
    // whose token is lost could not sign in.
    write(directory, TOKEN, token.expose()).with_context(|| format!("cannot write {}", file.display()))?;
    match records.add_user(FIRST_USER, &digest, credits).await {
        Ok(_) => Ok(Some(token)),
        // Another process added the user first.
        Err(AddUserError::Taken(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The file of the first user's token.
pub(super) fn first_token_file(config: &Config) -> PathBuf {
    directory(config).join(TOKEN)
}

/// Reads the first user's token, if this data directory has it.
pub(crate) fn read_first_token(config: &Config) -> Option<Secret> {
    let token = fs::read_to_string(first_token_file(config)).ok()?;
    Some(Secret::from(token.trim().to_owned()))
}

/// Replaces the stored token of the first user, where `sandbar up` reads it. A directory that has
/// none stays without: its records may be another server's, with another first user.
pub(super) fn store_first_token(config: &Config, token: &Secret) -> anyhow::Result<()> {
    let directory = directory(config);
    if !directory.join(TOKEN).exists() {
        return Ok(());
    }
    write(&directory, TOKEN, token.expose())
        .with_context(|| format!("cannot write {}", directory.join(TOKEN).display()))
}

/// Writes a file that only its owner can read.
fn write(directory: &Path, name: &str, text: &str) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    durable::write(&directory.join(name), text.as_bytes(), 0o600)
}
