//! `sandbar backup`, `sandbar restore` and `sandbar scrub`: the commands, and the timers of the
//! server.

mod restore;
mod scrub;
mod timer;

pub(crate) use restore::Restore;
pub(crate) use scrub::Scrub;
pub(crate) use timer::{BackupConfig, ScrubConfig, Timers};

use crate::config::{self, Config, Overrides};
use crate::runtime;
use ::backup::Sources;
use anyhow::{Context as _, bail};
use checkpoint::Objects;
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use url::Url;
use workspace::config::ObjectsConfig;

/// Where backups are kept.
#[derive(Args)]
pub(crate) struct BackupTarget {
    /// A directory on another disk, or s3://BUCKET/PREFIX (credentials: AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY)
    #[arg(value_name = "DIR|s3://BUCKET/PREFIX")]
    target: String,
    /// Of an S3 server that is not AWS
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL")]
    endpoint: Option<String>,
}

impl BackupTarget {
    /// Opens the object store. A directory is created if `make` is set, else it must exist.
    fn open(&self, make: bool) -> anyhow::Result<Objects> {
        let url = match self.target.contains("://") {
            true => self.target.clone(),
            false => {
                let path = Path::new(&self.target);
                if !make && !path.is_dir() {
                    bail!("{} is no directory", path.display());
                }
                format!("file://{}", std::path::absolute(path)?.display())
            }
        };
        let config = ObjectsConfig { url: Some(url), endpoint: self.endpoint.clone(), ..ObjectsConfig::default() };
        config.open(&config::variable).with_context(|| format!("{} cannot be used", self.target))
    }
}

/// Back up everything durable of this server, while it runs.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar backup /mnt/backup
  sandbar backup s3://BUCKET/sandbar
  sandbar backup /mnt/backup --json       {backup, files, databases, volumes, bytes, copiedBytes,
                                           inconsistentVolumes, notIncluded}
  sandbar restore /mnt/backup --data DIR

A backup has copies of all SQLite databases (sandboxes, studio, workspaces), keys and authorities, \
snapshots of workspaces that are kept on this machine, and the files of all sandboxes, templates and \
volumes; not the memory of paused sandboxes. What has not changed since the last backup in the same \
place is not copied again.

A backup exists when this command succeeds; one that broke off leaves the earlier ones as they are. \
It has keys and tokens in it: keep it as private as the data directory.

By a timer of the server:
  [backup]
  target = \"s3://BUCKET/sandbar\"
  interval_hours = 24")]
pub(crate) struct Backup {
    #[command(flatten)]
    target: BackupTarget,
    /// The data directory [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        crate::logging::start_if_wanted()?;
        let (config, sources) = enter(self.data.as_deref(), self.config.as_deref())?;
        let _lock = ::backup::lock(&sources.data)?;
        let report = runtime::block_on(async {
            let target = self.target.open(true)?;
            let external = find_external(&config, &sources.data)?;
            Ok(::backup::back_up(&sources, target, external, |line| eprintln!("{line}")).await?)
        })?;
        if self.json {
            println!("{}", serde_json::to_string(&report)?);
            return Ok(());
        }
        println!(
            "backup {}: {} files, {} databases, {} volumes; {} of {} bytes were new",
            report.backup, report.files, report.databases, report.volumes, report.copied_bytes, report.bytes
        );
        for name in &report.inconsistent_volumes {
            println!("inconsistent: files of volume {name} changed while they were read");
        }
        for one in &report.not_included {
            println!("not included: {one}");
        }
        Ok(())
    }
}

/// Reads the configuration of a server whose stored data a command reads, and enters a mount
/// namespace in which its pool can be opened.
fn enter(data: Option<&Path>, file: Option<&Path>) -> anyhow::Result<(Config, Sources)> {
    let overrides = Overrides { data: data.map(Path::to_owned), ..Overrides::default() };
    let config = Config::load(file, &overrides)?;
    if !config.data.is_dir() {
        bail!("there is no data directory {}; --data names another", config.data.display());
    }
    data_directory::check_owner(&config.data)?;
    let sources = Sources { data: config.data.canonicalize()?, workspaces: config::workspaces_directory()? };
    // Before any thread is started: a thread that exists already would stay outside of the
    // namespaces.
    engine::enter_private_mounts(&sources.data).context("cannot make namespaces")?;
    Ok((config, sources))
}

/// Names records and snapshots that the configuration keeps outside of the copied directories.
fn find_external(config: &Config, data: &Path) -> anyhow::Result<Vec<String>> {
    let workspaces = config.workspaces()?;
    let inside = [data.to_owned(), config::workspaces_directory()?];
    let is_inside = |path: &str| {
        let resolved = Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
        inside.iter().any(|directory| resolved.starts_with(directory) || Path::new(path).starts_with(directory))
    };
    let mut elsewhere = BTreeSet::new();
    let records = workspaces.records.location(&config::variable)?;
    match records.expose().strip_prefix("sqlite://") {
        Some(path) if is_inside(path) => {}
        Some(path) => drop(elsewhere.insert(format!("the records of workspaces in {path}"))),
        None => drop(elsewhere.insert("the records of workspaces in Postgres (`pg_dump` copies them)".to_owned())),
    }
    if let Some(url) = &workspaces.objects.url
        && !url.strip_prefix("file://").is_some_and(is_inside)
    {
        elsewhere.insert(format!("the snapshots of workspaces in {url}"));
    }
    for database in data_directory::known_databases(data) {
        match database.expose().strip_prefix("sqlite://") {
            Some(path) if is_inside(path) => {}
            Some(path) => drop(elsewhere.insert(format!("the records of the studio in {path}"))),
            None => {
                let place = without_password(database.expose());
                elsewhere.insert(format!("the records of the studio in {place} (`pg_dump` copies them)"));
            }
        }
    }
    Ok(elsewhere.into_iter().collect())
}

/// A Postgres URL without password and parameters, which can have passwords too.
fn without_password(url: &str) -> String {
    let shown = Url::parse(url).ok().and_then(|mut url| {
        url.set_password(None).ok()?;
        url.set_query(None);
        url.set_fragment(None);
        Some(url.to_string())
    });
    shown.unwrap_or_else(|| "Postgres".to_owned())
}
