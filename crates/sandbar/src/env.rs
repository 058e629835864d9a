//! `sandbar env`: prints the variables that SDKs and the dashboard's users need, for a shell to
//! evaluate.

use crate::config::{Config, Overrides};
use crate::{logging, studio};
use anyhow::{Context as _, bail};
use clap::Args;
use cli::show::Show;
use data_directory::{FoundServer, ServerNote};
use sdk::Secret;
use serde_json::{Map, Value};
use std::io::Write as _;
use std::path::PathBuf;

/// Print the variables that reach the server of this machine, keys included.
#[derive(Args)]
#[command(after_help = "\
Examples:
  eval \"$(sandbar env)\"            this shell, and what it starts, use the server
  eval \"$(sandbar env --data DIR)\"
  sandbar env --json | jq -r .E2B_API_KEY

`sandbar up` prints the same to a terminal. SANDBAR_TOKEN signs the first user in on the dashboard; `sandbar user token` replaces \
it.")]
pub(crate) struct Env {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// The data directory of the server [default: $XDG_DATA_HOME/sandbar]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "SANDBAR_CONFIG")]
    config: Option<PathBuf>,
}

impl Env {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        logging::start_if_wanted()?;
        let overrides = Overrides { data: self.data, ..Overrides::default() };
        let config = Config::load(self.config.as_deref(), &overrides)?;
        let found = data_directory::find_server(&config.data)
            .with_context(|| format!("cannot look for a server in {}", config.data.display()))?;
        let FoundServer::Serving(note) = found else {
            bail!("no server serves {}; `sandbar up` starts one", config.data.display());
        };
        let token = studio::read_first_token(&config);
        if self.json {
            let pairs = variables(&note, token.as_ref());
            let object: Map<String, Value> =
                pairs.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
            return Ok(Show::new(true).object(&Value::Object(object))?);
        }
        Ok(write!(std::io::stdout(), "{}", lines(&note, token.as_ref()))?)
    }
}

/// `export` lines for a shell. Keys, tokens and addresses have no characters that need quoting.
pub(crate) fn lines(note: &ServerNote, token: Option<&Secret>) -> String {
    variables(note, token).into_iter().map(|(name, value)| format!("export {name}={value}\n")).collect()
}

fn variables(note: &ServerNote, token: Option<&Secret>) -> Vec<(&'static str, String)> {
    let mut pairs = vec![("E2B_API_KEY", note.api_key.clone())];
    pairs.extend(["E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"].map(|name| (name, note.url.clone())));
    pairs.extend(token.map(|token| ("SANDBAR_TOKEN", token.expose().to_owned())));
    pairs
}
