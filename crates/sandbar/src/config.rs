//! Configuration: file, then `SANDBAR_*` variables, then flags; the later wins. Nothing below the program reads the
//! environment. An unknown key is an error that names it.

use crate::agent::{ModelConfig, Prices};
use crate::backup::{BackupConfig, ScrubConfig};
use crate::limits::LimitsConfig;
use crate::screenshot_host::ScreenshotsConfig;
use crate::{data, hosts};
use anyhow::{Context, bail};
use engine::net::{Budget, Trust};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workspace::ProviderName;
use workspace::config::{
    BudgetConfig, ObjectsConfig, OwnServer, ProviderConfig, ProviderKind, RecordsConfig, WorkspaceConfig,
};

/// What a configuration file may say. `sandbar up --help` shows an example.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Address of the one listener.
    pub listen: SocketAddr,
    /// Where everything durable lives.
    pub data: PathBuf,
    /// The key clients must send; absent: made once and kept in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    /// What SDKs append to name a port of a sandbox; absent: `localhost` with the listener's port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The only host name of the dashboard; absent: every name that leads to the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dashboard_host: Option<String>,
    /// Offer what Sandbar adds to E2B.
    pub extensions: bool,
    /// End all sandboxes when the server stops.
    pub ephemeral: bool,
    /// What a sandbox gets and how many there may be.
    pub sandboxes: node::SandboxesConfig,
    /// What sandboxes may reach beyond the public internet.
    pub egress: EgressConfig,
    /// What the server itself may use, and how it is divided.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Where `take_screenshot` keeps its pictures, and for how long.
    pub screenshots: ScreenshotsConfig,
    /// Where workspaces run, in order of preference; empty: what `E2B_*` variables say, then this machine.
    #[serde(default)]
    pub providers: Vec<ProviderConfig>,
    /// Where snapshots of workspaces are kept; absent: in the data directory.
    #[serde(default)]
    pub objects: ObjectsConfig,
    /// Where workspaces and their usage are remembered; absent: in the data directory.
    #[serde(default)]
    pub records: RecordsConfig,
    /// What workspaces may cost.
    #[serde(default)]
    pub budgets: Vec<BudgetConfig>,
    /// What models cost, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelConfig>,
    /// Where the server listens that this process is; absent in a client, which reads it in the
    /// data directory.
    #[serde(skip)]
    pub own_server: Option<OwnServer>,
    /// Backups that the server makes by itself.
    #[serde(default)]
    pub backup: BackupConfig,
    /// How often the server re-reads what it keeps.
    #[serde(default)]
    pub scrub: ScrubConfig,
}

/// Of the egress, in the data directory.
const AUTHORITY: &str = "authority/egress";

/// Private networks that sandboxes may reach all the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EgressConfig {
    /// Address ranges, for example `10.1.0.0/16`.
    pub allow_ranges: Vec<String>,
    /// Host names, for example `registry.corp.example` or `*.corp.example`.
    pub allow_names: Vec<String>,
    /// Name servers to ask instead of those in the host's `/etc/resolv.conf`.
    pub nameservers: Vec<String>,
    /// PEM files of authorities that count besides the host's where rules set headers of TLS requests.
    pub extra_roots: Vec<PathBuf>,
}

impl EgressConfig {
    /// The engine's form of it; a value that does not parse is named.
    /// Certificates are kept below `data`.
    pub(crate) fn to_engine(&self, data: &Path, budget: Budget) -> anyhow::Result<engine::net::EgressConfig> {
        let allow_ranges = self
            .allow_ranges
            .iter()
            .map(|text| text.parse().map_err(|error| anyhow::anyhow!("egress.allow_ranges: `{text}`: {error}")))
            .collect::<anyhow::Result<_>>()?;
        let nameservers = self.nameservers.iter().map(|text| nameserver(text)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(engine::net::EgressConfig {
            allow_ranges,
            allow_names: self.allow_names.clone(),
            nameservers: (!nameservers.is_empty()).then_some(nameservers),
            trust: Some(Arc::new(Trust::new(&data.join(AUTHORITY), self.extra_roots.clone()))),
            budget: Arc::new(budget),
        })
    }
}

fn nameserver(text: &str) -> anyhow::Result<SocketAddr> {
    const DNS_PORT: u16 = 53;
    text.parse::<SocketAddr>()
        .or_else(|_| text.parse().map(|address| SocketAddr::new(address, DNS_PORT)))
        .with_context(|| format!("egress.nameservers: `{text}` is neither an address nor address:port"))
}

/// Flags that override the file and the environment.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Overrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dashboard_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extensions: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<bool>,
}

/// Environment variables with a meaning in the configuration; other `SANDBAR_*` variables belong to other programs.
const VARIABLES: &[&str] = &[
    "listen",
    "data",
    "api_key",
    "domain",
    "dashboard_host",
    "extensions",
    "ephemeral",
    "sandboxes",
    "egress",
    "limits",
    "screenshots",
    "objects",
    "records",
    "backup",
    "scrub",
];

impl Config {
    /// Reads the configuration. A named `file` must exist; the default one may be absent.
    pub(crate) fn load(file: Option<&Path>, overrides: &Overrides) -> anyhow::Result<Self> {
        Ok(Self::load_with_sources(file, overrides)?.0)
    }

    /// The configuration, where each of its values comes from, and the file.
    pub(crate) fn load_with_sources(
        file: Option<&Path>,
        overrides: &Overrides,
    ) -> anyhow::Result<(Self, Figment, Option<PathBuf>)> {
        let file = match file {
            Some(file) if !file.is_file() => bail!("the configuration file {} does not exist", file.display()),
            Some(file) => Some(file.to_owned()),
            None => default_file().filter(|default| default.exists()),
        };
        let mut figment = Figment::from(Serialized::defaults(Self::defaults()?));
        if let Some(file) = &file {
            figment = figment.merge(Toml::file_exact(file));
        }
        let environment = Env::prefixed("SANDBAR_")
            .filter(|key| {
                let section = key.as_str().split("__").next().unwrap_or_default();
                VARIABLES.iter().any(|known| section.eq_ignore_ascii_case(known))
            })
            .split("__");
        let figment = figment.merge(environment).merge(Serialized::defaults(overrides));
        let config: Self = figment.extract().map_err(|error| anyhow::anyhow!("configuration: {}", describe(&error)))?;
        let checked = config.check().and_then(|()| config.workspaces().map(|_| ()));
        checked.with_context(|| match &file {
            Some(file) => format!("configuration ({})", file.display()),
            None => "configuration".to_owned(),
        })?;
        Ok((config, figment, file))
    }

    /// What workspaces need, with everything filled in that was left open.
    pub(crate) fn workspaces(&self) -> anyhow::Result<WorkspaceConfig> {
        let config = WorkspaceConfig {
            providers: self.providers.clone(),
            objects: self.objects.clone(),
            records: self.records.clone(),
            budgets: self.budgets.clone(),
            ..WorkspaceConfig::default()
        };
        self.unified(config.resolve(&workspaces_directory()?, &variable)?)
    }

    /// With one provider for this machine's server, by whatever names the environment and the file
    /// call it.
    pub(crate) fn unified(&self, mut workspaces: WorkspaceConfig) -> anyhow::Result<WorkspaceConfig> {
        if let Some(own) = self.own_server.clone().or_else(|| data::known_server(&self.data)) {
            workspaces.unify(&own);
        }
        Ok(workspaces)
    }

    /// The names of this machine's provider.
    pub(crate) fn local_providers(&self) -> anyhow::Result<HashSet<ProviderName>> {
        let WorkspaceConfig { providers, aliases, .. } = self.workspaces()?;
        let local = providers.into_iter().filter(|provider| provider.kind == ProviderKind::Local);
        Ok(local.map(|provider| provider.name).chain(aliases.into_keys()).collect())
    }

    /// What the types cannot say.
    fn check(&self) -> anyhow::Result<()> {
        self.egress.to_engine(&self.data, self.limits.egress())?;
        self.limits.check()?;
        self.domain.as_deref().map_or(Ok(()), hosts::check_domain)?;
        let check_dashboard = |host| hosts::check_dashboard(host, self.domain.as_deref());
        self.dashboard_host.as_deref().map_or(Ok(()), check_dashboard)?;
        Prices::new(&self.models)?;
        self.sandboxes.check().map_err(|wrong| anyhow::anyhow!("sandboxes.{wrong}"))?;
        self.screenshots.check()?;
        let plain = |key: &str| {
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        let intervals = [("backup", self.backup.interval_hours), ("scrub", self.scrub.interval_hours)];
        for (section, hours) in intervals {
            if hours.is_some_and(|hours| !hours.is_finite() || hours <= 0.0) {
                bail!("{section}.interval_hours must be above 0");
            }
        }
        // It is printed for a shell to read, and travels in a header.
        if !self.api_key.as_deref().is_none_or(plain) {
            bail!("api_key may hold letters, digits, `_` and `-` only, and must not be empty");
        }
        Ok(())
    }

    fn defaults() -> anyhow::Result<Self> {
        let data = xdg("XDG_DATA_HOME", ".local/share")
            .context("neither XDG_DATA_HOME nor HOME is set; name a data directory with --data")?;
        Ok(Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 4980)),
            data: data.join("sandbar"),
            api_key: None,
            domain: None,
            dashboard_host: None,
            extensions: true,
            ephemeral: false,
            sandboxes: node::SandboxesConfig::default(),
            egress: EgressConfig::default(),
            limits: LimitsConfig::default(),
            screenshots: ScreenshotsConfig::default(),
            providers: Vec::new(),
            objects: ObjectsConfig::default(),
            records: RecordsConfig::default(),
            budgets: Vec::new(),
            models: BTreeMap::new(),
            own_server: None,
            backup: BackupConfig::default(),
            scrub: ScrubConfig::default(),
        })
    }
}

/// The file that is read when none is named.
pub(crate) fn default_file() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config").map(|base| base.join("sandbar/config.toml"))
}

/// Where records and snapshots of workspaces are kept unless the file says otherwise. Workspaces outlive servers: this
/// does not follow a server's data directory.
pub(crate) fn workspaces_directory() -> anyhow::Result<PathBuf> {
    let data = xdg("XDG_DATA_HOME", ".local/share").context("neither XDG_DATA_HOME nor HOME is set")?;
    Ok(data.join("sandbar").join(WORKSPACES))
}

/// The name of that directory, which may be beside a server's own files.
pub(crate) const WORKSPACES: &str = "workspaces";

/// An environment variable; an empty one counts as none.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One line: which key, what is wrong, in which source.
fn describe(error: &figment::Error) -> String {
    let key = error.path.join(".");
    let source = error
        .metadata
        .as_ref()
        .map(|metadata| match &metadata.source {
            Some(source) => format!(" ({source})"),
            None => format!(" ({})", metadata.name),
        })
        .unwrap_or_default();
    match key.as_str() {
        "" => format!("{}{source}", error.kind),
        key => format!("`{key}`: {}{source}", error.kind),
    }
}

/// A base directory by the XDG rules: the variable when it is absolute, else under the home directory.
fn xdg(variable: &str, under_home: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| std::env::home_dir().map(|home| home.join(under_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> anyhow::Result<Config> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("config.toml");
        std::fs::write(&file, text).expect("the file is written");
        Config::load(Some(&file), &Overrides::default())
    }

    #[track_caller]
    fn refused(text: &str, expected: &str) {
        let error = format!("{:#}", load(text).expect_err("the configuration is wrong"));
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        refused("lisen = \"127.0.0.1:1\"", "lisen");
        refused("[egress]\nallow_range = []", "allow_range");
        refused("[sandboxes]\nmemory = 1", "memory");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key() {
        refused("listen = \"nowhere\"", "`listen`");
        refused("[egress]\nallow_ranges = [\"10.0.0.0/99\"]", "10.0.0.0/99");
        refused("[egress]\nnameservers = [\"one\"]", "`one`");
    }

    #[test]
    fn what_no_sandbox_could_have_is_refused_at_the_start() {
        refused("[sandboxes]\ncpu_count = 0", "sandboxes.cpu_count is 0");
        refused("[sandboxes]\nmemory_mb = 1", "sandboxes.memory_mb is 1");
        refused("[sandboxes]\ndisk_mb = 99999999", "sandboxes.disk_mb is 99999999");
        refused("api_key = \"a b\"", "api_key");
        refused("domain = \"10.0.0.1\"", "an address");
        refused("api_key = \"\"", "api_key");
    }

    #[test]
    fn a_named_file_must_exist() {
        let error = Config::load(Some(Path::new("/nonexistent/sandbar.toml")), &Overrides::default());
        assert!(error.expect_err("absent").to_string().contains("/nonexistent/sandbar.toml"));
    }

    #[test]
    fn flags_win_over_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("config.toml");
        std::fs::write(&file, "listen = \"127.0.0.1:1\"\nextensions = false").expect("the file is written");
        let flags = Overrides { listen: Some(SocketAddr::from(([127, 0, 0, 1], 2))), ..Overrides::default() };
        let config = Config::load(Some(&file), &flags).expect("a good configuration");
        assert_eq!((config.listen.port(), config.extensions), (2, false));
    }
}
