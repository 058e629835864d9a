//! `sandbar studio`: serves the studio without a server of sandboxes.

use super::open::{StudioOptions, StudioRuntime, first_token_file};
use crate::config::{Config, Overrides};
use crate::local_server::LocalStarter;
use crate::{hosts, logging, runtime};
use ::studio::rest;
use agent::model::ModelChoice;
use anyhow::Context as _;
use clap::Args;
use cli::interrupt::Stops;
use data_directory::DatabaseNote;
use sdk::Secret;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use workspace::provider::LocalServer;

/// Serve the studio alone: several on one Postgres share the work.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sandbar studio --database postgres://studio@db.example/studio
  sandbar studio --database sqlite:///srv/studio.sqlite --listen 127.0.0.1:0

Sandboxes come from the providers of the configuration, or from this machine's `sandbar up`. `sandbar up` has a studio of its own.

A worker that is killed loses nothing: another goes on with its jobs within 15 seconds.")]
pub(crate) struct Serve {
    /// Where jobs and everything else is remembered: sqlite:///FILE or postgres://… [default: in
    /// the data directory]
    #[arg(long, value_name = "URL", env = "SANDBAR_DATABASE", hide_env_values = true)]
    database: Option<Secret>,
    /// Address of the listener; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4984")]
    listen: SocketAddr,
    /// The data directory [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    studio: StudioFlags,
}

/// Flags that `sandbar up` and `sandbar studio` share.
#[derive(Args, Debug)]
#[command(next_help_heading = "Studio")]
pub(crate) struct StudioFlags {
    /// Where files for scripted models are; users can choose them
    #[arg(long, value_name = "DIR", env = "SANDBAR_STUDIO_SCRIPTS")]
    scripts: Option<PathBuf>,
    /// A model that users can choose, the first by default: anthropic:NAME, openai:NAME@URL; may be
    /// repeated [default: anthropic:claude-opus-5-5 where ANTHROPIC_API_KEY is set]
    #[arg(long, value_name = "MODEL", env = "SANDBAR_STUDIO_MODELS", value_delimiter = ',')]
    model: Vec<ModelChoice>,
    /// Builds at once; 0 builds nothing here
    #[arg(long, value_name = "COUNT", default_value_t = 2, env = "SANDBAR_STUDIO_BUILDS")]
    builds: usize,
}

impl StudioFlags {
    pub(crate) fn options(self, database: Option<Secret>) -> StudioOptions {
        StudioOptions { database, scripts: self.scripts, models: self.model, builds: self.builds }
    }
}

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        logging::start()?;
        runtime::block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<()> {
        let overrides = Overrides { data: self.data, ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        let listener = TcpListener::bind(self.listen)
            .await
            .with_context(|| format!("cannot listen on {}; --listen names another address", self.listen))?;
        let mut stops = Stops::install()?;
        let local: Arc<dyn LocalServer> = Arc::new(LocalStarter::new(&config, self.config.as_deref())?);
        let database = self.database.clone();
        let mut studio_runtime = StudioRuntime::open(&config, &local, &self.studio.options(self.database)).await?;
        // Before a job can make a sandbox: `sandbar down` saves the workspaces of jobs.
        let _note = database.map(|url| DatabaseNote::write(&config.data, &url)).transpose()?;
        let token_file = first_token_file(&config);
        let mut out = std::io::stdout();
        if let Some(token) = &studio_runtime.token {
            if out.is_terminal() {
                writeln!(out, "export SANDBAR_TOKEN={}", token.expose())?;
            } else {
                writeln!(out, "# SANDBAR_TOKEN is printed to terminals only; it is in {}", token_file.display())?;
            }
        }
        writeln!(out, "ready: http://{}", listener.local_addr()?)?;
        out.flush()?;
        studio_runtime.start_worker();
        let stop = CancellationToken::new();
        let own = hosts::domain(config.domain.as_deref(), config.listen);
        let router = rest::router(
            studio_runtime.studio.clone(),
            &studio_runtime.rest_options(&own, config.dashboard_host.as_deref()),
            stop.clone(),
        );
        let serving = tokio::spawn(rest::serve(listener, router, stop.clone()));
        stops.next().await;
        eprintln!("stopping…");
        stop.cancel();
        let finish = async {
            studio_runtime.close().await;
            serving.await
        };
        tokio::select! {
            served = finish => served.context("the listener failed")?.context("the listener failed"),
            // The user sent a second signal: do not wait.
            _ = stops.next() => Ok(()),
        }
    }
}
