//! Opens the studio for a program: where it keeps what outlives it, its first user, its worker.

use super::models::Models;
use super::premises::Rooms;
use crate::agent::Prices;
use crate::config::{self, Config};
use crate::data::STUDIO;
use ::studio::records::{NameTaken, Records};
use ::studio::rest::Face;
use ::studio::token::{Digest, new_token};
use ::studio::{Premises, Settings, Studio};
use agent::model::Choice;
use anyhow::Context as _;
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
use workspace::events::Nobody;
use workspace::provider::LocalServer;
use workspace::records::DatabaseRecords;

/// Whoever starts the first server.
pub(super) const FIRST_USER: &str = "owner";
const TOKEN: &str = "token";
/// Has the database, whether it was set or came as a flag.
const DATABASE: &str = "SANDBAR_DATABASE";

/// Where the studio keeps everything: beside its server's own files unless the configuration says otherwise, since the sandboxes of
/// its jobs are that server's.
fn workspaces(config: &Config, database: Option<&Secret>) -> anyhow::Result<WorkspaceConfig> {
    let records = match database {
        // It may have a password, which a configuration must not.
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
    config.unified(workspaces.resolve(&directory(config), &config::variable)?)
}

/// What the environment has, with the database that was named.
fn variables(database: Option<&Secret>) -> impl Fn(&str) -> Option<String> + Sync {
    let database = database.cloned();
    move |name| match &database {
        Some(url) if name == DATABASE => Some(url.expose().to_owned()),
        _ => config::variable(name),
    }
}

fn directory(config: &Config) -> PathBuf {
    config.data.join(STUDIO)
}

/// The records alone, for those who look after users.
pub(super) async fn records(config: &Config, database: Option<&Secret>) -> anyhow::Result<Records> {
    let url = workspaces(config, database)?.records.location(&variables(database))?;
    Records::open(&url).await.context("the studio's records cannot be opened")
}

/// What the studio's jobs used, for those who read the books.
pub(crate) struct Book {
    /// Where it is.
    pub(crate) location: Secret,
    pub(crate) records: DatabaseRecords,
    /// Which project each of its workspaces is of.
    pub(crate) projects: HashMap<String, String>,
}

/// Where the studio's records are; none where there never was a studio.
fn location(config: &Config, database: Option<&Secret>) -> anyhow::Result<Option<Secret>> {
    let url = workspaces(config, database)?.records.location(&variables(database))?;
    let file = url.expose().strip_prefix("sqlite://").and_then(|rest| rest.split('?').next());
    let there = match file {
        Some(file) => fs::exists(file).with_context(|| format!("{file} cannot be read"))?,
        None => true,
    };
    Ok(there.then_some(url))
}

/// The workspaces of the studio's jobs, for those who are about to end their server; none where there never was a studio.
pub(crate) async fn workspaces_of(
    config: &Config,
    local: &Arc<dyn LocalServer>,
    settings: workspace::Settings,
    database: Option<&Secret>,
) -> anyhow::Result<Option<Workspaces>> {
    if location(config, database)?.is_none() {
        return Ok(None);
    }
    let (workspaces, variables) = (workspaces(config, database)?, variables(database));
    let opened = Workspaces::from_config(&workspaces, &variables, local, Arc::new(Nobody), settings).await;
    Ok(Some(opened.context("the studio's workspaces cannot be opened")?))
}

/// The studio's book; none where there never was a studio.
pub(crate) async fn book(config: &Config, database: Option<&Secret>) -> anyhow::Result<Option<Book>> {
    let Some(url) = location(config, database)? else { return Ok(None) };
    let studio = Records::open(&url).await.context("the studio's records cannot be opened")?;
    let projects = studio.project_names().await?;
    studio.close().await?;
    let records = DatabaseRecords::open(&url).await.context("the studio's book cannot be opened")?;
    Ok(Some(Book { location: url, records, projects }))
}

/// How the studio works in this program.
pub(crate) struct Options {
    pub(crate) database: Option<Secret>,
    /// Where scripted models may be.
    pub(crate) scripts: Option<PathBuf>,
    /// Models that users can choose besides; the first is the default.
    pub(crate) models: Vec<Choice>,
    /// Builds at once.
    pub(crate) builds: usize,
}

/// The studio of this program, and its worker.
pub(crate) struct Workshop {
    pub(crate) studio: Studio,
    /// Of the first user, where this program knows it.
    pub(crate) token: Option<Secret>,
    rooms: Arc<Rooms>,
    /// Below which the previews of providers are.
    domains: Vec<String>,
    stop: CancellationToken,
    worker: Option<JoinHandle<()>>,
}

impl Workshop {
    pub(crate) async fn open(config: &Config, local: &Arc<dyn LocalServer>, options: &Options) -> anyhow::Result<Self> {
        let database = options.database.as_ref();
        let (workspaces, variables) = (workspaces(config, database)?, variables(database));
        let url = workspaces.records.location(&variables)?;
        let models = Models::new(options.scripts.as_deref(), &options.models, Prices::new(&config.models)?)
            .context("the directory of scripts cannot be used")?;
        let rooms = Arc::new(Rooms::open(config, &workspaces, &variables, local, models).await?);
        let settings = Settings { builds: options.builds, ..Settings::default() };
        let credits = settings.first_credits;
        let studio = Studio::open(&url, Arc::clone(&rooms) as Arc<dyn Premises>, settings).await?;
        let token = first_token(studio.records(), &directory(config), credits).await?;
        let domains = workspaces.providers.iter().filter_map(|provider| provider.domain.clone()).collect();
        Ok(Self { studio, token, rooms, domains, stop: CancellationToken::new(), worker: None })
    }

    /// Of its jobs.
    pub(crate) fn workspaces(&self) -> &Workspaces {
        self.rooms.workspaces()
    }

    /// How it shows itself: the previews of every provider may be framed, and those of this machine's own server, which are
    /// below `own`. `host` is the only one it has pages and sessions under, if there is one.
    pub(crate) fn face(&self, own: &str, host: Option<&str>) -> Face {
        let face = Face { host: host.map(str::to_owned), ..Face::default() };
        self.domains.iter().map(String::as_str).chain([own]).fold(face, Face::domain)
    }

    /// Begins to build what is waiting. The server that sandboxes come from must be there.
    pub(crate) fn work(&mut self) {
        self.worker = Some(tokio::spawn(::studio::work(self.studio.clone(), self.stop.clone())));
    }

    /// Leaves what is being built to whoever comes next, and ends.
    pub(crate) async fn close(&mut self) {
        self.stop.cancel();
        if let Some(worker) = self.worker.take()
            && let Err(error) = worker.await
        {
            warn!(%error, "the worker broke off");
        }
        self.studio.close().await;
        self.rooms.close().await;
    }
}

/// The first user's token. It is made with the user and kept in the data directory, as the server's key is; where somebody else made
/// the user, only they have it.
async fn first_token(records: &Records, directory: &Path, credits: i64) -> anyhow::Result<Option<Secret>> {
    let file = directory.join(TOKEN);
    match fs::read_to_string(&file) {
        Ok(token) => {
            let token = token.trim().to_owned();
            let known = match Digest::of(&token) {
                Some(digest) => records.user_with(&digest).await?.is_some(),
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
    let digest = Digest::of(token.expose()).context("a new token has the form of one")?;
    // The file first: a token that nobody has would open nothing, a user without a token could not be entered.
    write(directory, TOKEN, token.expose()).with_context(|| format!("cannot write {}", file.display()))?;
    match records.add_user(FIRST_USER, &digest, credits).await {
        Ok(_) => Ok(Some(token)),
        // Another process was quicker.
        Err(NameTaken::Taken(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Where the first user's token is kept.
pub(super) fn first_token_file(config: &Config) -> PathBuf {
    directory(config).join(TOKEN)
}

/// The first user's token, where this data directory has it.
pub(crate) fn kept_first_token(config: &Config) -> Option<Secret> {
    let token = fs::read_to_string(first_token_file(config)).ok()?;
    Some(Secret::from(token.trim().to_owned()))
}

/// Keeps the first user's new token where `sandbar up` finds it; only where it found the old one:
/// with records elsewhere, the user may be another's.
pub(super) fn keep_first_token(config: &Config, token: &Secret) -> anyhow::Result<()> {
    let directory = directory(config);
    if !directory.join(TOKEN).exists() {
        return Ok(());
    }
    write(&directory, TOKEN, token.expose())
        .with_context(|| format!("cannot write {}", directory.join(TOKEN).display()))
}

/// Readable by its owner alone.
fn write(directory: &Path, name: &str, text: &str) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    durable::write(&directory.join(name), text.as_bytes(), 0o600)
}
