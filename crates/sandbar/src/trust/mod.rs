//! `sandbar trust`: prints the certificate of the authority of the server's hosts, and adds it to
//! the machine's trust store or removes it.

mod store;

use crate::config::{Config, Overrides};
use crate::{hosts, logging};
use anyhow::Context;
use ca::Authority;
use clap::Args;
use cli::show::Show;
use serde_json::json;
use std::io::Write as _;
use std::path::PathBuf;
use store::{Change, Store};

/// Print the certificate that makes https://… of this server trusted, or have this machine trust
/// it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar trust                      the certificate (PEM) on standard output, and how to use it
  sandbar trust --install            every program that uses the system's store trusts it (as root)
  sandbar trust --remove             and no longer
  sandbar trust --path               the file that has it
  sandbar trust --json | jq -r .sha256

For one program only, without changing the system's store:
  sandbar trust > sandbar.pem
  cat /etc/ssl/certs/ca-certificates.crt sandbar.pem > roots.pem  # SSL_CERT_FILE takes the place of all others
  SSL_CERT_FILE=roots.pem python app.py                           # E2B's Python SDK, httpx
  REQUESTS_CA_BUNDLE=roots.pem python app.py                      # requests
  NODE_EXTRA_CA_CERTS=sandbar.pem node app.js                     # E2B's JavaScript SDK
  curl --cacert sandbar.pem https://localhost:4980/health

With that, an SDK needs no more than these (for the default server):
  E2B_API_KEY=… E2B_DOMAIN=localhost:4980

Firefox, and Chromium on Linux, keep stores of their own: import the file in their settings, under certificates and \
authorities. Names under `localhost` are known to browsers and curl; for other programs install libnss-myhostname, or give the \
server a domain that your name server knows (`sandbar up --domain`).

The authority belongs to one data directory and one domain. It signs for `localhost`, the domain, what is below them, and the \
machine's own addresses, and its certificate says so: no other name that it might sign is believed. Its key stays in that \
directory, for its owner only.")]
pub(crate) struct Trust {
    /// Have this machine's store trust it
    #[arg(long, conflicts_with_all = ["remove", "path"])]
    install: bool,
    /// Take it out of this machine's store
    #[arg(long, conflicts_with = "path")]
    remove: bool,
    /// Print where the certificate is, and nothing else
    #[arg(long)]
    path: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// The data directory of the server [default: by XDG rules]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The domain that `sandbar up` was given [default: the configured one, else localhost]
    #[arg(long, value_name = "NAME[:PORT]")]
    domain: Option<String>,
    /// The dashboard's host that `sandbar up` was given [default: the configured one]
    #[arg(long, value_name = "NAME")]
    dashboard_host: Option<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
}

impl Trust {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        logging::start_if_wanted()?;
        let overrides = Overrides {
            data: self.data.clone(),
            domain: self.domain.clone(),
            dashboard_host: self.dashboard_host.clone(),
            ..Overrides::default()
        };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        // The owner is not checked: root may install the authority of another user's server.
        if config.data.exists() {
            data_directory::check_purpose(&config.data)?;
        }
        let authority = hosts::authority(&config.data, config.domain.as_deref(), config.dashboard_host.as_deref())?;
        let mut done = None;
        if self.install || self.remove {
            let store = Store::find()?;
            let change = if self.install { store.install(&authority) } else { store.remove(&authority) };
            done = Some(change.with_context(|| explain_failure(&config, self.install))?);
        }
        self.report(&authority, done.as_ref())
    }

    fn report(&self, authority: &Authority, done: Option<&Change>) -> anyhow::Result<()> {
        let show = Show::new(self.json);
        let path = authority.certificate_path();
        if self.json {
            // On a machine without a known store the authority is not installed.
            let installed = Store::find().ok().and_then(|store| store.installed(authority));
            return Ok(show.object(&json!({
                "path": path,
                "certificate": authority.certificate_pem(),
                "sha256": store::fingerprint(authority),
                "installed": installed.is_some(),
                "installedAt": installed,
                "changed": done.is_some_and(|change| change.changed),
            }))?);
        }
        if let Some(change) = done {
            return Ok(show.line(&change.message)?);
        }
        if self.path {
            return Ok(show.line(path.display().to_string())?);
        }
        write!(std::io::stdout(), "{}", authority.certificate_pem())?;
        // On stderr, so that `sandbar trust > sandbar.pem` has the certificate alone.
        eprintln!(
            "\nThis is also in {}. To have this machine trust it: `sandbar trust --install` as root.\n\
             For one program: `sandbar trust > sandbar.pem`, then NODE_EXTRA_CA_CERTS=sandbar.pem for Node and \
             `curl --cacert sandbar.pem`;\nSSL_CERT_FILE for Python takes the place of the system's roots: \
             `sandbar trust --help` shows how to keep them.",
            path.display()
        );
        Ok(())
    }
}

/// The context of an error of the store: usually only root may change it.
fn explain_failure(config: &Config, install: bool) -> String {
    let (flag, what) =
        if install { ("--install", "cannot have this machine trust it") } else { ("--remove", "cannot take it out") };
    if rustix::process::geteuid().is_root() {
        what.to_owned()
    } else {
        // Root's default data directory is another one, so `--data` is named.
        let mut domain = config.domain.as_deref().map(|domain| format!(" --domain {domain}")).unwrap_or_default();
        if let Some(host) = &config.dashboard_host {
            domain.push_str(&format!(" --dashboard-host {host}"));
        }
        format!("{what}: only root may; `sudo sandbar trust {flag} --data {}{domain}` does it", config.data.display())
    }
}
