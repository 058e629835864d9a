//! What the configuration file says about workspaces: providers in order of preference, where objects and records are
//! kept, and budgets.
//!
//! The program reads the file and hands over these parts; nothing here reads the environment, a lookup is passed in.
//! Keys never stand in the file: it names the environment variable that has one.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sdk::Secret;
use serde::{Deserialize, Serialize};

use crate::ledger::Usd;
use crate::name::ProviderName;
use crate::provider::{Plan, Price};
use crate::snapshot::FolderName;

/// Where E2B's own clients look for a key.
const KEY_VARIABLE: &str = "E2B_API_KEY";
const TEMPLATE: &str = "base";

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Gives the value of an environment variable; an empty one counts as none.
pub type Variables<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// A value that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {problem}")]
pub struct Mistake {
    /// Which key of the file.
    pub key: String,
    pub problem: String,
}

fn mistake(key: impl Into<String>, problem: impl Into<String>) -> Mistake {
    Mistake { key: key.into(), problem: problem.into() }
}

/// The parts of the configuration that workspaces need.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkspaceConfig {
    /// In order of preference; empty: what `E2B_*` variables say, then this machine.
    pub providers: Vec<ProviderConfig>,
    pub objects: ObjectsConfig,
    pub records: RecordsConfig,
    pub budgets: Vec<BudgetConfig>,
}

/// One place where sandboxes run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    pub name: ProviderName,
    pub kind: ProviderKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_mode: Option<DeploymentMode>,
    /// The variable that has the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// One URL for the traffic of all sandboxes; a server without a domain has it on its API URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_url: Option<String>,
    /// What a sandbox is made from unless a request names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "ResourcesConfig::is_empty")]
    pub resources: ResourcesConfig,
    #[serde(default)]
    pub plan: PlanConfig,
    #[serde(default)]
    pub price: PriceConfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// A service that speaks E2B's protocol.
    E2b,
    /// The server of this machine: found, or started.
    Local,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentMode {
    /// E2B's own cloud.
    Managed,
    /// A cluster or a Sandbar server of one's own.
    SelfHosted,
}

/// What a sandbox gets unless a request says otherwise, and the most one may ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResourcesConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpu_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory_mb: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_disk_mb: Option<u32>,
}

impl ResourcesConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits of what one has bought; what is absent comes from the preset, else is not limited.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_lifetime_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_sandboxes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creations_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minutes_per_month: Option<u64>,
}

/// E2B's plans as they are sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A sandbox lives an hour at most.
    Base,
    /// A sandbox lives a day at most.
    Pro,
}

impl Preset {
    fn plan(self) -> PlanConfig {
        let (lifetime, concurrent, creations) = match self {
            Self::Base => (HOUR, 20, 60),
            Self::Pro => (DAY, 100, 300),
        };
        PlanConfig {
            preset: Some(self),
            longest_lifetime_seconds: Some(lifetime),
            concurrent_sandboxes: Some(concurrent),
            creations_per_minute: Some(creations),
            minutes_per_month: None,
        }
    }
}

/// About what E2B's default size costs an hour.
const E2B_USD_PER_HOUR: f64 = 0.10;

/// What a running sandbox costs; the parts add up.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PriceConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_hour: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_cpu_hour: Option<f64>,
    /// For each GiB of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_gib_hour: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_creation: Option<f64>,
}

impl PriceConfig {
    fn is_empty(&self) -> bool {
        let Self { usd_per_hour, usd_per_cpu_hour, usd_per_gib_hour, usd_per_creation } = self;
        [usd_per_hour, usd_per_cpu_hour, usd_per_gib_hour, usd_per_creation].iter().all(|part| part.is_none())
    }
}

/// Where snapshots are kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectsConfig {
    /// `file:///DIR` or `s3://BUCKET/PREFIX`; absent: under the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Of an S3 server that is not AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_gib_month: Option<f64>,
    /// Folders that snapshots leave out besides `node_modules`, `dist` and the like, by name. What git tracks is kept in any
    /// case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leave_out: Vec<FolderName>,
    /// Folders that snapshots keep although they are usually left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<FolderName>,
}

/// Where workspaces and their usage are remembered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordsConfig {
    /// `sqlite:///FILE` or `postgres://HOST/DATABASE`, without a password; absent: SQLite under the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The variable that has the URL, for one with a password; wins over `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_env: Option<String>,
}

/// What may be spent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// Absent: all projects together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub usd: f64,
    #[serde(default)]
    pub period: BudgetPeriod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    /// The calendar month, in UTC.
    #[default]
    Month,
    /// From the first day on.
    Total,
}

impl WorkspaceConfig {
    /// Fills in everything the file left open, so that what is used is what is shown. `data` is the directory that records
    /// and objects live in.
    ///
    /// # Errors
    /// A value that cannot be meant, with its key.
    pub fn resolve(&self, data: &Path, variables: Variables<'_>) -> Result<Self, Mistake> {
        self.check()?;
        let named = if self.providers.is_empty() { default_providers(variables) } else { self.providers.clone() };
        let file_url = |name: &str, scheme: &str| format!("{scheme}://{}", data.join(name).display());
        let objects = ObjectsConfig {
            url: Some(self.objects.url.clone().unwrap_or_else(|| file_url("objects", "file"))),
            ..self.objects.clone()
        };
        let records = match &self.records {
            RecordsConfig { url_env: Some(name), .. } => RecordsConfig { url: None, url_env: Some(name.clone()) },
            RecordsConfig { url, url_env: None } => RecordsConfig {
                url: Some(url.clone().unwrap_or_else(|| file_url("records.sqlite", "sqlite"))),
                url_env: None,
            },
        };
        let providers = named.iter().map(ProviderConfig::filled).collect();
        Ok(Self { providers, objects, records, budgets: self.budgets.clone() })
    }

    /// What the types cannot say.
    fn check(&self) -> Result<(), Mistake> {
        let mut names = BTreeSet::new();
        for (index, provider) in self.providers.iter().enumerate() {
            provider.check(&format!("providers.{index}"))?;
            if !names.insert(&provider.name) {
                let problem = format!("there is a provider named `{}` already", provider.name);
                return Err(mistake(format!("providers.{index}.name"), problem));
            }
        }
        if let Some(url) = &self.records.url {
            check_records_url("records.url", url)?;
        }
        if let Some(url) = &self.objects.url {
            let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
            if !["file", "s3", "memory"].contains(&scheme) {
                return Err(mistake("objects.url", format!("`{url}` is neither file:///DIR nor s3://BUCKET")));
            }
        }
        amount("objects.usd_per_gib_month", self.objects.usd_per_gib_month)?;
        let mut scopes = BTreeSet::new();
        for (index, budget) in self.budgets.iter().enumerate() {
            let key = format!("budgets.{index}");
            if amount(&format!("{key}.usd"), Some(budget.usd))?.is_none_or(|usd| usd == Usd::ZERO) {
                return Err(mistake(format!("{key}.usd"), "a budget must be more than nothing"));
            }
            if !scopes.insert((budget.project.as_deref(), budget.period == BudgetPeriod::Month)) {
                return Err(mistake(format!("{key}.project"), "there is such a budget already"));
            }
        }
        Ok(())
    }
}

impl RecordsConfig {
    /// The URL to be opened. It may have a password, so it is a secret.
    ///
    /// # Errors
    /// The variable that should have it is not set.
    pub fn location(&self, variables: Variables<'_>) -> Result<Secret, Mistake> {
        match (&self.url_env, &self.url) {
            (Some(name), _) => variables(name)
                .map(Secret::from)
                .ok_or_else(|| mistake("records.url_env", format!("the variable {name} is not set"))),
            (None, Some(url)) => Ok(Secret::from(url.as_str())),
            (None, None) => Err(mistake("records.url", "it is not set")),
        }
    }
}

fn check_records_url(key: &str, url: &str) -> Result<(), Mistake> {
    let parsed = url::Url::parse(url).map_err(|error| mistake(key, format!("it is not a URL: {error}")))?;
    match parsed.scheme() {
        "sqlite" => Ok(()),
        // The text itself is not repeated: it has the password.
        "postgres" | "postgresql"
            if parsed.password().is_some() || parsed.query_pairs().any(|(name, _)| name == "password") =>
        {
            Err(mistake(
                key,
                "a password does not belong in the file; put the URL in a variable and name it in `url_env`",
            ))
        }
        "postgres" | "postgresql" => Ok(()),
        other => Err(mistake(key, format!("`{other}` is neither sqlite nor postgres"))),
    }
}

fn amount(key: &str, dollars: Option<f64>) -> Result<Option<Usd>, Mistake> {
    dollars
        .map(|dollars| Usd::from_dollars(dollars).ok_or_else(|| mistake(key, format!("{dollars} is not an amount"))))
        .transpose()
}

impl ProviderConfig {
    /// A provider with everything by default.
    pub fn new(name: ProviderName, kind: ProviderKind) -> Self {
        Self {
            name,
            kind,
            deployment_mode: None,
            api_key_env: None,
            api_url: None,
            domain: None,
            sandbox_url: None,
            template: None,
            resources: ResourcesConfig::default(),
            plan: PlanConfig::default(),
            price: PriceConfig::default(),
        }
    }

    fn check(&self, key: &str) -> Result<(), Mistake> {
        let at = |field: &str| format!("{key}.{field}");
        let places = [("api_url", &self.api_url), ("domain", &self.domain), ("sandbox_url", &self.sandbox_url)];
        let placed = places.iter().find(|(_, value)| value.is_some()).map(|(field, _)| *field);
        match (self.kind, self.deployment_mode, placed) {
            (ProviderKind::Local, _, Some(field)) => {
                return Err(mistake(
                    at(field),
                    "a local provider is found by its data directory; kind = \"e2b\" takes it",
                ));
            }
            (ProviderKind::Local, Some(_), None) => {
                return Err(mistake(at("deployment_mode"), "only kind = \"e2b\" has one"));
            }
            (ProviderKind::Local, None, None) if self.api_key_env.is_some() => {
                return Err(mistake(at("api_key_env"), "a local provider's key is in its data directory"));
            }
            (ProviderKind::E2b, Some(DeploymentMode::Managed), Some("api_url" | "sandbox_url")) => {
                return Err(mistake(
                    at("deployment_mode"),
                    "a URL of your own needs deployment_mode = \"self_hosted\"",
                ));
            }
            (ProviderKind::E2b, Some(DeploymentMode::SelfHosted), None) => {
                return Err(mistake(at("api_url"), "a self-hosted provider needs an api_url or a domain"));
            }
            _ => {}
        }
        for (field, value) in [("api_url", &self.api_url), ("sandbox_url", &self.sandbox_url)] {
            let good = |url: &String| url::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
            if let Some(url) = value.as_ref().filter(|url| !good(url)) {
                return Err(mistake(at(field), format!("`{url}` is not an http or https URL")));
            }
        }
        let named = |name: &String| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && !name.starts_with("e2b_")
        };
        if self.api_key_env.as_ref().is_some_and(|name| !named(name)) {
            // Not repeated: it may be a key.
            return Err(mistake(at("api_key_env"), "it must be the name of an environment variable, not a key"));
        }
        if self.template.as_deref() == Some("") {
            return Err(mistake(at("template"), "it must not be empty"));
        }
        self.check_figures(key)
    }

    fn check_figures(&self, key: &str) -> Result<(), Mistake> {
        let PlanConfig {
            preset: _,
            longest_lifetime_seconds,
            concurrent_sandboxes,
            creations_per_minute,
            minutes_per_month,
        } = self.plan;
        for (field, value) in [
            ("longest_lifetime_seconds", longest_lifetime_seconds),
            ("concurrent_sandboxes", concurrent_sandboxes.map(u64::from)),
            ("creations_per_minute", creations_per_minute.map(u64::from)),
            ("minutes_per_month", minutes_per_month),
        ] {
            if value == Some(0) {
                return Err(mistake(format!("{key}.plan.{field}"), "0 would allow nothing; leave it out for no limit"));
            }
        }
        let ResourcesConfig { cpu_count, memory_mb, disk_mb, max_cpu_count, max_memory_mb, max_disk_mb } =
            self.resources;
        for (field, default, most) in [
            ("cpu_count", cpu_count, max_cpu_count),
            ("memory_mb", memory_mb, max_memory_mb),
            ("disk_mb", disk_mb, max_disk_mb),
        ] {
            match (default, most) {
                (Some(0), _) => return Err(mistake(format!("{key}.resources.{field}"), "0 is no size")),
                (Some(default), Some(most)) if default > most => {
                    let problem = format!("{default} is more than max_{field} = {most}");
                    return Err(mistake(format!("{key}.resources.{field}"), problem));
                }
                _ => {}
            }
        }
        let PriceConfig { usd_per_hour, usd_per_cpu_hour, usd_per_gib_hour, usd_per_creation } = self.price;
        for (field, value) in [
            ("usd_per_hour", usd_per_hour),
            ("usd_per_cpu_hour", usd_per_cpu_hour),
            ("usd_per_gib_hour", usd_per_gib_hour),
            ("usd_per_creation", usd_per_creation),
        ] {
            amount(&format!("{key}.price.{field}"), value)?;
        }
        Ok(())
    }

    /// With what the file left open.
    fn filled(&self) -> Self {
        let mut filled = self.clone();
        filled.template.get_or_insert_with(|| TEMPLATE.to_owned());
        let e2b = self.kind == ProviderKind::E2b;
        let mode = e2b.then(|| {
            let elsewhere = self.api_url.is_some() || self.sandbox_url.is_some() || self.domain.is_some();
            let guessed = if elsewhere { DeploymentMode::SelfHosted } else { DeploymentMode::Managed };
            self.deployment_mode.unwrap_or(guessed)
        });
        filled.deployment_mode = mode;
        if e2b {
            filled.api_key_env.get_or_insert_with(|| KEY_VARIABLE.to_owned());
            if self.domain.is_none() {
                // Such a server has everything on one listener, and tells sandboxes apart by headers.
                filled.sandbox_url = self.sandbox_url.clone().or_else(|| self.api_url.clone());
            }
        }
        let managed = mode == Some(DeploymentMode::Managed);
        let preset = self.plan.preset.or(managed.then_some(Preset::Base));
        let bought = match (preset, mode) {
            (Some(preset), _) => preset.plan(),
            (None, Some(_)) => PlanConfig { longest_lifetime_seconds: Some(DAY), ..PlanConfig::default() },
            (None, None) => PlanConfig { longest_lifetime_seconds: Some(30 * DAY), ..PlanConfig::default() },
        };
        let own = self.plan;
        filled.plan = PlanConfig {
            preset,
            longest_lifetime_seconds: own.longest_lifetime_seconds.or(bought.longest_lifetime_seconds),
            concurrent_sandboxes: own.concurrent_sandboxes.or(bought.concurrent_sandboxes),
            creations_per_minute: own.creations_per_minute.or(bought.creations_per_minute),
            minutes_per_month: own.minutes_per_month.or(bought.minutes_per_month),
        };
        if self.price.is_empty() {
            let hour = if managed || preset.is_some() { E2B_USD_PER_HOUR } else { 0.0 };
            filled.price.usd_per_hour = Some(hour);
        }
        filled
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            longest_lifetime: self.plan.longest_lifetime_seconds.map(Duration::from_secs),
            concurrent_sandboxes: self.plan.concurrent_sandboxes,
            creations_per_minute: self.plan.creations_per_minute,
            minutes_per_month: self.plan.minutes_per_month,
        }
    }

    /// What its sandboxes cost.
    pub fn price(&self) -> Price {
        let usd = |dollars: Option<f64>| dollars.and_then(Usd::from_dollars).unwrap_or(Usd::ZERO);
        Price {
            per_hour: usd(self.price.usd_per_hour),
            per_cpu_hour: usd(self.price.usd_per_cpu_hour),
            per_gib_hour: usd(self.price.usd_per_gib_hour),
            per_creation: usd(self.price.usd_per_creation),
        }
    }
}

/// Without a file: the service that `E2B_*` variables name, then this machine.
fn default_providers(variables: Variables<'_>) -> Vec<ProviderConfig> {
    let named = |name: &str| ProviderName::try_from(name.to_owned()).ok();
    let e2b = named("e2b").map(|name| ProviderConfig {
        api_url: variables("E2B_API_URL"),
        domain: variables("E2B_DOMAIN"),
        sandbox_url: variables("E2B_SANDBOX_URL"),
        ..ProviderConfig::new(name, ProviderKind::E2b)
    });
    let local = named("local").map(|name| ProviderConfig::new(name, ProviderKind::Local));
    e2b.into_iter().chain(local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn provider(change: impl FnOnce(&mut ProviderConfig)) -> ProviderConfig {
        let mut provider = ProviderConfig::new("a".parse().expect("a name"), ProviderKind::E2b);
        change(&mut provider);
        provider
    }

    fn resolve(providers: Vec<ProviderConfig>) -> Result<WorkspaceConfig, Mistake> {
        let config = WorkspaceConfig { providers, ..WorkspaceConfig::default() };
        config.resolve(Path::new("/data"), &nothing)
    }

    #[track_caller]
    fn refused(provider: ProviderConfig, expected: &str) {
        let said = resolve(vec![provider]).expect_err("it cannot be meant").to_string();
        assert!(said.contains(expected), "{said:?} does not contain {expected:?}");
    }

    #[test]
    fn without_a_file_the_variables_come_first_and_then_this_machine() {
        let config = resolve(vec![]).expect("the defaults are good");
        let [e2b, local] = config.providers.as_slice() else { panic!("two providers: {config:?}") };
        assert_eq!((e2b.kind, e2b.deployment_mode), (ProviderKind::E2b, Some(DeploymentMode::Managed)));
        assert_eq!((local.kind, local.deployment_mode), (ProviderKind::Local, None));
        assert_eq!(e2b.api_key_env.as_deref(), Some("E2B_API_KEY"));
        assert_eq!((e2b.plan.longest_lifetime_seconds, e2b.price.usd_per_hour), (Some(3600), Some(0.10)));
        assert_eq!((local.plan.longest_lifetime_seconds, local.price.usd_per_hour), (Some(30 * DAY), Some(0.0)));
        assert_eq!(config.records.url.as_deref(), Some("sqlite:///data/records.sqlite"));
        assert_eq!(config.objects.url.as_deref(), Some("file:///data/objects"));

        let variable = |name: &str| (name == "E2B_API_URL").then(|| "http://127.0.0.1:5000".to_owned());
        let config = WorkspaceConfig::default().resolve(Path::new("/data"), &variable).expect("good");
        let own = &config.providers[0];
        assert_eq!(own.deployment_mode, Some(DeploymentMode::SelfHosted));
        assert_eq!(own.sandbox_url.as_deref(), Some("http://127.0.0.1:5000"));
    }

    #[test]
    fn presets_are_filled_in_and_each_figure_can_be_changed() {
        let pro = provider(|provider| {
            provider.plan.preset = Some(Preset::Pro);
            provider.plan.concurrent_sandboxes = Some(7);
        });
        let config = resolve(vec![pro]).expect("good");
        let plan = config.providers[0].plan();
        assert_eq!(plan.longest_lifetime, Some(Duration::from_secs(86400)));
        assert_eq!((plan.concurrent_sandboxes, plan.creations_per_minute), (Some(7), Some(300)));
        assert_eq!(config.providers[0].price().per_hour, Usd::from_cents(10));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_key() {
        refused(provider(|it| it.deployment_mode = Some(DeploymentMode::SelfHosted)), "`providers.0.api_url`");
        refused(provider(|it| it.api_url = Some("localhost:1".into())), "`providers.0.api_url`: `localhost:1`");
        refused(
            provider(|it| (it.kind, it.api_url) = (ProviderKind::Local, Some("http://a".into()))),
            "found by its data directory",
        );
        refused(
            provider(|it| (it.deployment_mode, it.api_url) = (Some(DeploymentMode::Managed), Some("http://a".into()))),
            "self_hosted",
        );
        refused(provider(|it| it.plan.concurrent_sandboxes = Some(0)), "`providers.0.plan.concurrent_sandboxes`");
        refused(provider(|it| it.price.usd_per_hour = Some(-1.0)), "`providers.0.price.usd_per_hour`: -1");
        refused(
            provider(|it| (it.resources.cpu_count, it.resources.max_cpu_count) = (Some(4), Some(2))),
            "4 is more than max_cpu_count = 2",
        );
        let twice = resolve(vec![provider(|_| ()), provider(|_| ())]).expect_err("one name").to_string();
        assert!(twice.contains("`providers.1.name`"), "{twice}");
    }

    #[test]
    fn a_key_or_a_password_in_the_file_is_refused_and_not_repeated() {
        let key = "e2b_0123456789";
        let said = resolve(vec![provider(|it| it.api_key_env = Some(key.into()))]).expect_err("a key").to_string();
        assert!(said.contains("not a key") && !said.contains(key), "{said}");

        let mut config = WorkspaceConfig::default();
        for url in ["postgres://me:hidden@host/db", "postgres://host/db?password=hidden"] {
            config.records.url = Some(url.into());
            let said = config.resolve(Path::new("/data"), &nothing).expect_err("a password").to_string();
            assert!(said.contains("url_env") && !said.contains("hidden"), "{said}");
        }
        config.records = RecordsConfig { url: None, url_env: Some("DATABASE_URL".into()) };
        let resolved = config.resolve(Path::new("/data"), &nothing).expect("good");
        assert!(resolved.records.location(&nothing).expect_err("not set").to_string().contains("DATABASE_URL"));
        let set = |name: &str| (name == "DATABASE_URL").then(|| "postgres://me:hidden@host/db".to_owned());
        let location = resolved.records.location(&set).expect("set");
        assert!(location.expose().contains("hidden") && !format!("{location:?}").contains("hidden"));
    }
}
