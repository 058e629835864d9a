//! Configuration: file, then `SANDBAR_*` variables, then flags; the later wins. The libraries below
//! the program do not read the environment. An unknown key is an error that names it.

use crate::agent::{ModelConfig, Prices};
use crate::backup::{BackupConfig, ScrubConfig};
use crate::hosts;
use crate::limits::LimitsConfig;
use crate::screenshot_host::ScreenshotsConfig;
use anyhow::{Context, bail};
use ca::{Authority, AuthorityError};
use data_directory::{ServerNote, WORKSPACES, last_server};
use egress::{Budget, InspectionAuthority, Trust};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workspace::ProviderName;
use workspace::config::{
    BudgetConfig, ObjectsConfig, OwnServer, ProviderConfig, ProviderKind, RecordsConfig, WorkspaceConfig,
};

/// Configuration of Sandbar: the keys of a configuration file.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Address and port of the one listener. Port 0 takes a free one.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Directory of everything durable.
    #[schemars(extend("x-default" = "`$XDG_DATA_HOME/sandbar`"))]
    pub data: PathBuf,
    /// The key that clients send: letters, digits, `_` and `-`. Set it by `SANDBAR_API_KEY` rather
    /// than in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "made once and kept in the data directory"))]
    pub api_key: Option<String>,
    /// What SDKs append to `PORT-SANDBOX.`. All names below it must lead to the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "`localhost` and the port"))]
    pub domain: Option<String>,
    /// The only host name of the dashboard, outside of `domain`. Use one of another registrable
    /// domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "every name that leads to the listener"))]
    pub dashboard_host: Option<String>,
    /// Serve the calls that Sandbar adds to E2B's.
    pub extensions: bool,
    /// End all sandboxes when the server stops.
    pub ephemeral: bool,
    /// What a sandbox gets, and how many there may be.
    pub sandboxes: node::SandboxesConfig,
    /// What sandboxes may reach beyond the public internet, and how names are resolved.
    pub egress: EgressConfig,
    /// Descriptors and connections of the server, and how they are divided.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Where screenshots are kept, and for how long.
    pub screenshots: ScreenshotsConfig,
    /// Where workspaces run, in order of preference. Without any, `E2B_API_KEY`, `E2B_API_URL`,
    /// `E2B_DOMAIN` and `E2B_SANDBOX_URL` name the first and this machine is the second.
    #[serde(default)]
    pub providers: Vec<ProviderConfig>,
    /// Where snapshots of workspaces are kept, how many, and what is in them.
    #[serde(default)]
    pub objects: ObjectsConfig,
    /// Where workspaces and their usage are recorded.
    #[serde(default)]
    pub records: RecordsConfig,
    /// What workspaces may cost: warnings at 50, 80 and 95 %; at 100 % workspaces are saved and
    /// paused.
    #[serde(default)]
    pub budgets: Vec<BudgetConfig>,
    /// Prices of models that Sandbar does not know, by name, in dollars per million tokens. A
    /// budget in dollars needs them. `sandbar run --price IN/OUT` does the same for one run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelConfig>,
    /// The server that runs in this process; absent in a client, which reads it from the data
    /// directory.
    #[serde(skip)]
    pub own_server: Option<OwnServer>,
    /// Backups that the server makes at an interval, as `sandbar backup` does.
    #[serde(default)]
    pub backup: BackupConfig,
    /// How often the server verifies stored data, as `sandbar scrub` does, and logs what is
    /// damaged.
    #[serde(default)]
    pub scrub: ScrubConfig,
}

/// Directory of the egress authority, below the data directory.
const AUTHORITY: &str = "authority/egress";
/// Name of the egress authority in lists of trusted authorities.
const COMMON_NAME: &str = "Sandbar egress";

/// Private networks that sandboxes may reach, and how they resolve names.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EgressConfig {
    /// Private address ranges, and ranges of networks that the host itself is on, that sandboxes
    /// may reach, for example `10.1.0.0/16`.
    pub allow_ranges: Vec<String>,
    /// Hosts that sandboxes may reach at private addresses or on the host's networks, for example
    /// `*.corp.example`. Also the local names that may be resolved: those of one label, and those
    /// below `.local`, `.internal`, `.corp`, `.lan` and the like.
    pub allow_names: Vec<String>,
    /// Name servers to ask; none: those of the host's `/etc/resolv.conf`.
    pub nameservers: Vec<String>,
    /// PEM files of authorities that are trusted besides the host's where rules set headers of TLS
    /// requests.
    pub extra_roots: Vec<PathBuf>,
}

impl EgressConfig {
    /// Converts to the engine's type; an error names the value that does not parse. Certificates
    /// are kept below `data`.
    pub(crate) fn to_engine(&self, data: &Path, budget: Budget) -> anyhow::Result<egress::EgressConfig> {
        let allow_ranges = self
            .allow_ranges
            .iter()
            .map(|text| text.parse().map_err(|error| anyhow::anyhow!("egress.allow_ranges: `{text}`: {error}")))
            .collect::<anyhow::Result<_>>()?;
        let nameservers = self.nameservers.iter().map(|text| nameserver(text)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(egress::EgressConfig {
            allow_ranges,
            allow_names: self.allow_names.clone(),
            nameservers: (!nameservers.is_empty()).then_some(nameservers),
            trust: Some(Arc::new(Trust::new(authority_in(data.join(AUTHORITY)), self.extra_roots.clone()))),
            budget: Arc::new(budget),
        })
    }
}

/// Opens the authority of `directory`, which is created on first use.
fn authority_in(directory: PathBuf) -> impl Fn() -> Result<InspectionAuthority, AuthorityError> {
    move || {
        let authority = Arc::new(Authority::open(&directory, COMMON_NAME, &[])?);
        let certificate_pem = authority.certificate_pem().to_owned();
        Ok(InspectionAuthority { certificate_pem, server_config: authority.server_config(&[]) })
    }
}

fn nameserver(text: &str) -> anyhow::Result<SocketAddr> {
    const DNS_PORT: u16 = 53;
    text.parse::<SocketAddr>()
        .or_else(|_| text.parse().map(|address| SocketAddr::new(address, DNS_PORT)))
        .with_context(|| format!("egress.nameservers: `{text}` is neither an address nor address:port"))
}

/// Flags, which override the file and the environment.
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

/// Keys that `SANDBAR_*` variables can set; other variables with this prefix are ignored.
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

    /// Reads the configuration, with the source of each value and the path of the file.
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

    /// The configuration of workspaces with all defaults resolved.
    pub(crate) fn workspaces(&self) -> anyhow::Result<WorkspaceConfig> {
        let config = WorkspaceConfig {
            providers: self.providers.clone(),
            objects: self.objects.clone(),
            records: self.records.clone(),
            budgets: self.budgets.clone(),
            ..WorkspaceConfig::default()
        };
        self.unify_local_provider(config.resolve(&workspaces_directory()?, &variable)?)
    }

    /// Merges all providers that are this machine's server into one. Environment and file may name
    /// it differently.
    pub(crate) fn unify_local_provider(&self, mut workspaces: WorkspaceConfig) -> anyhow::Result<WorkspaceConfig> {
        if let Some(own) = self.own_server.clone().or_else(|| last_server(&self.data).as_ref().map(own_server)) {
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

    /// Checks the rules that the types do not express.
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
        // The key is printed for a shell to evaluate, and sent in a header.
        if !self.api_key.as_deref().is_none_or(plain) {
            bail!("api_key may hold letters, digits, `_` and `-` only, and must not be empty");
        }
        Ok(())
    }

    pub(crate) fn defaults() -> anyhow::Result<Self> {
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

/// The default configuration file.
pub(crate) fn default_file() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config").map(|base| base.join("sandbar/config.toml"))
}

/// Default directory of records and checkpoints of workspaces. It does not depend on a server's
/// data directory, because workspaces outlive servers.
pub(crate) fn workspaces_directory() -> anyhow::Result<PathBuf> {
    let data = xdg("XDG_DATA_HOME", ".local/share").context("neither XDG_DATA_HOME nor HOME is set")?;
    Ok(data.join("sandbar").join(WORKSPACES))
}

/// The addresses that distinguish a server from other providers.
pub(crate) fn own_server(note: &ServerNote) -> OwnServer {
    OwnServer { url: note.url.clone(), domain: note.domain.clone(), everywhere: note.everywhere }
}

/// An environment variable; an empty one counts as unset.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One line with the key, the error and the source.
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

/// A base directory by the XDG rules: the variable when it is absolute, else under the home
/// directory.
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
    fn assert_refused(text: &str, expected: &str) {
        let error = format!("{:#}", load(text).expect_err("the configuration is wrong"));
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    }

    #[test]
    fn an_unknown_key_is_named() {
        assert_refused("lisen = \"127.0.0.1:1\"", "lisen");
        assert_refused("[egress]\nallow_range = []", "allow_range");
        assert_refused("[sandboxes]\nmemory = 1", "memory");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key() {
        assert_refused("listen = \"nowhere\"", "`listen`");
        assert_refused("[egress]\nallow_ranges = [\"10.0.0.0/99\"]", "10.0.0.0/99");
        assert_refused("[egress]\nnameservers = [\"one\"]", "`one`");
    }

    #[test]
    fn what_no_sandbox_could_have_is_refused_at_the_start() {
        assert_refused("[sandboxes]\ncpu_count = 0", "sandboxes.cpu_count is 0");
        assert_refused("[sandboxes]\nmemory_mb = 1", "sandboxes.memory_mb is 1");
        assert_refused("[sandboxes]\ndisk_mb = 99999999", "sandboxes.disk_mb is 99999999");
        assert_refused("api_key = \"a b\"", "api_key");
        assert_refused("domain = \"10.0.0.1\"", "an address");
        assert_refused("api_key = \"\"", "api_key");
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
