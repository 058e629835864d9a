//! Chooses the service and its key: flags first, then `E2B_*` variables, then the server of the
//! local data directory, so that nothing need be set while `sandbar up` runs.

use crate::config::{self, Config, Overrides};
use anyhow::{Context, bail};
use clap::Args;
use cli::{Connect, values};
use data_directory::FoundServer;
use sdk::{Client, ClientBuilder, Secret};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args)]
#[command(next_help_heading = "Endpoint")]
pub(crate) struct Endpoint {
    /// The control plane [default: $E2B_API_URL, else the local server]
    #[arg(long, global = true, value_name = "URL")]
    api_url: Option<String>,
    /// The key; visible to other users of this machine, so rather use a file or $E2B_API_KEY
    #[arg(long, global = true, value_name = "KEY", conflicts_with = "api_key_file", value_parser = secret, hide_default_value = true)]
    api_key: Option<Secret>,
    /// A file that holds the key [default: $E2B_API_KEY, else the local server's]
    #[arg(long, global = true, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// The service's domain [default: $E2B_DOMAIN, else e2b.app]
    #[arg(long, global = true, value_name = "DOMAIN")]
    domain: Option<String>,
    /// One URL for the traffic of all sandboxes [default: $E2B_SANDBOX_URL]
    #[arg(long, global = true, value_name = "URL")]
    sandbox_url: Option<String>,
    /// The data directory of the local server [default: $SANDBAR_DATA, else $XDG_DATA_HOME/sandbar]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Longest wait for an answer of the service
    #[arg(long, global = true, value_name = "TIME", value_parser = values::wait, default_value = "60s")]
    request_timeout: Duration,
}

fn secret(text: &str) -> Result<Secret, String> {
    if text.is_empty() { Err("the key must not be empty".to_owned()) } else { Ok(Secret::from(text)) }
}

impl Connect for Endpoint {
    fn connect(&self) -> anyhow::Result<Client> {
        let mut builder =
            Client::builder().user_agent(concat!("sandbar/", env!("CARGO_PKG_VERSION"))).deadline(self.request_timeout);
        let set =
            |builder: ClientBuilder, value: &Option<String>, apply: fn(ClientBuilder, String) -> ClientBuilder| {
                value.clone().map_or(builder.clone(), |value| apply(builder, value))
            };
        builder = set(builder, &self.api_url, |builder, url| builder.api_url(url));
        builder = set(builder, &self.sandbox_url, |builder, url| builder.sandbox_url(url));
        builder = set(builder, &self.domain, |builder, domain| builder.domain(domain));
        builder = match self.key()? {
            Some(key) => builder.api_key(key),
            None if variable("E2B_API_KEY").is_some() => builder,
            None => self.local(builder)?,
        };
        builder.build().context("the endpoint cannot be used")
    }
}

impl Endpoint {
    fn key(&self) -> anyhow::Result<Option<Secret>> {
        let Some(file) = &self.api_key_file else { return Ok(self.api_key.clone()) };
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read the key in {}", file.display()))?;
        let key = text.trim();
        if key.is_empty() {
            bail!("the key file {} is empty", file.display());
        }
        Ok(Some(Secret::from(key)))
    }

    /// Uses the local server, unless the caller named another service.
    fn local(&self, builder: ClientBuilder) -> anyhow::Result<ClientBuilder> {
        let elsewhere = self.api_url.clone().or_else(|| variable("E2B_API_URL"));
        if self.domain.is_some() || variable("E2B_DOMAIN").is_some() {
            bail!("E2B API key not configured; set E2B_API_KEY or use --api-key-file");
        }
        let directory = self.config()?.data;
        let note = match data_directory::find_server(&directory) {
            Ok(FoundServer::Serving(note)) => note,
            Ok(other) => bail!(describe(&other, &directory, elsewhere.as_deref())),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => bail!(
                "E2B API key not configured, and {} belongs to another user; \
                 run this as the user of `sandbar up` (sudo), or set E2B_API_KEY",
                directory.display()
            ),
            Err(error) => return Err(error).with_context(|| format!("cannot look into {}", directory.display())),
        };
        if let Some(url) = elsewhere.filter(|url| !config::own_server(&note).is_at(url)) {
            bail!("E2B API key not configured for {url} (the local server is {}); set E2B_API_KEY", note.url);
        }
        let builder = builder.api_key(note.api_key).api_url(&note.url);
        Ok(match &self.sandbox_url {
            Some(_) => builder,
            None => builder.sandbox_url(note.url),
        })
    }

    /// Loads this machine's configuration.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let overrides = Overrides { data: self.data.clone(), ..Overrides::default() };
        Config::load(config_file().as_deref(), &overrides)
    }
}

/// The configuration file, if one was named.
pub(crate) fn config_file() -> Option<PathBuf> {
    std::env::var_os("SANDBAR_CONFIG").map(PathBuf::from)
}

/// The error when no local server serves, with what to do.
fn describe(found: &FoundServer, directory: &Path, elsewhere: Option<&str>) -> String {
    let directory = directory.display();
    match (found, elsewhere) {
        (_, Some(url)) => format!("E2B API key not configured for {url}; set E2B_API_KEY or use --api-key-file"),
        (FoundServer::Dead { pid }, None) => format!(
            "E2B API key not configured, and the server of {directory} (process {pid}) is gone; \
             start `sandbar up`, or set E2B_API_KEY"
        ),
        (FoundServer::Busy, None) => {
            format!("the server of {directory} is just starting or stopping; try again in a moment")
        }
        (FoundServer::Absent | FoundServer::Serving(_), None) => format!(
            "E2B API key not configured, and no `sandbar up` runs here ({directory}); \
             start `sandbar up`, name the directory of one with --data, or set E2B_API_KEY"
        ),
    }
}

/// An environment variable; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
