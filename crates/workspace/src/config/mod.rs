//! The workspace sections of the configuration file: providers in order of preference, object
//! store, records and budgets.
//!
//! The program reads the file and passes these sections in. This module never reads the
//! environment; callers pass a lookup function. The file holds no keys: it names the environment
//! variable that holds each one.

mod own;
mod provider;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schemars::JsonSchema;
use sdk::Secret;
use serde::{Deserialize, Serialize};

pub use own::OwnServer;
pub use provider::{DeploymentMode, PlanConfig, Preset, PriceConfig, ProviderConfig, ProviderKind, ResourcesConfig};

use crate::ledger::Usd;
use crate::name::ProviderName;
use checkpoint::FolderName;

/// Looks up an environment variable; an empty value counts as unset.
pub type Variables<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// A configuration value that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {problem}")]
pub struct Mistake {
    /// The key in the file.
    pub key: String,
    pub problem: String,
}

fn mistake(key: impl Into<String>, problem: impl Into<String>) -> Mistake {
    Mistake { key: key.into(), problem: problem.into() }
}

/// The sections of the configuration that workspaces use.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkspaceConfig {
    /// In order of preference. Empty: the service that `E2B_*` variables name, then this machine.
    pub providers: Vec<ProviderConfig>,
    pub objects: ObjectsConfig,
    pub records: RecordsConfig,
    pub budgets: Vec<BudgetConfig>,
    /// Other names of this machine's own server, found by [`WorkspaceConfig::unify`]. Not part of
    /// the file.
    #[serde(skip)]
    pub aliases: BTreeMap<ProviderName, ProviderName>,
}

/// Where and how checkpoints are stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectsConfig {
    /// `file:///DIR` or `s3://BUCKET/PREFIX`. The region is that of `AWS_REGION`,
    /// `AWS_DEFAULT_REGION` or `us-east-1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "a directory below `$XDG_DATA_HOME/sandbar/workspaces`"))]
    pub url: Option<String>,
    /// URL of another service than AWS with S3's protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "AWS"))]
    pub endpoint: Option<String>,
    /// Price of what is kept, for `sandbar usage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_gib_month: Option<f64>,
    /// Names of folders that snapshots exclude in addition to generated ones (such as
    /// `node_modules` next to a `package.json`). Files that git tracks are always kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub leave_out: Vec<FolderName>,
    /// Snapshots of each workspace that are kept; those of a phase longer than those of a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = checkpoint::CheckpointSettings::default().keep))]
    pub keep_snapshots: Option<usize>,
    /// Days of which all snapshots are kept in addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_snapshots_days: Option<u64>,
    /// The supervisor saves a running sandbox when the newest snapshot is older than this many
    /// minutes. `0` saves only at pauses, commits and changes of sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 10))]
    pub save_every_minutes: Option<u64>,
    /// Names of generated folders that snapshots keep nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub keep: Vec<FolderName>,
}

/// The database of workspaces and their usage.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecordsConfig {
    /// `sqlite:///FILE` or `postgres://HOST/DATABASE`, without a password.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "SQLite below `$XDG_DATA_HOME/sandbar/workspaces`"))]
    pub url: Option<String>,
    /// The variable that holds the URL, for a URL with a password; overrides `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_env: Option<String>,
}

/// A spending limit.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// The project that the budget is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "all projects together"))]
    pub project: Option<String>,
    /// The amount.
    pub usd: f64,
    /// What the amount is for.
    #[serde(default)]
    pub period: BudgetPeriod,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetPeriod {
    /// The calendar month, in UTC.
    #[default]
    Month,
    /// Without an end, from the first use on.
    Total,
}

impl WorkspaceConfig {
    /// Fills in every default, so that the shown configuration is the one in use. `data` is the
    /// directory of local records and objects.
    ///
    /// # Errors
    /// [`Mistake`] with the key of the first invalid value.
    pub fn resolve(&self, data: &Path, variables: Variables<'_>) -> Result<Self, Mistake> {
        self.check()?;
        let named =
            if self.providers.is_empty() { provider::from_variables(variables) } else { self.providers.clone() };
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
        let providers = named.iter().map(ProviderConfig::with_defaults).collect();
        Ok(Self { providers, objects, records, budgets: self.budgets.clone(), aliases: self.aliases.clone() })
    }

    /// Validates what the types cannot express.
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
    /// The database URL to open; a [`Secret`], since it may contain a password.
    ///
    /// # Errors
    /// [`Mistake`] when the URL, or the variable that should hold it, is not set.
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
        // The error omits the URL: it contains the password.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::provider::DAY;
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
    fn assert_rejects(provider: ProviderConfig, expected: &str) {
        let message = resolve(vec![provider]).expect_err("an invalid value").to_string();
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }

    #[test]
    fn defaults_are_the_e2b_variables_then_this_machine() {
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
    fn preset_figures_can_be_overridden() {
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
    fn invalid_values_are_rejected_with_their_key() {
        assert_rejects(provider(|it| it.deployment_mode = Some(DeploymentMode::SelfHosted)), "`providers.0.api_url`");
        assert_rejects(provider(|it| it.api_url = Some("localhost:1".into())), "`providers.0.api_url`: `localhost:1`");
        assert_rejects(
            provider(|it| (it.kind, it.api_url) = (ProviderKind::Local, Some("http://a".into()))),
            "found by its data directory",
        );
        assert_rejects(
            provider(|it| (it.deployment_mode, it.api_url) = (Some(DeploymentMode::Managed), Some("http://a".into()))),
            "self_hosted",
        );
        assert_rejects(
            provider(|it| it.plan.concurrent_sandboxes = Some(0)),
            "`providers.0.plan.concurrent_sandboxes`",
        );
        assert_rejects(provider(|it| it.price.usd_per_hour = Some(-1.0)), "`providers.0.price.usd_per_hour`: -1");
        assert_rejects(
            provider(|it| (it.resources.cpu_count, it.resources.max_cpu_count) = (Some(4), Some(2))),
            "4 is more than max_cpu_count = 2",
        );
        let twice = resolve(vec![provider(|_| ()), provider(|_| ())]).expect_err("one name").to_string();
        assert!(twice.contains("`providers.1.name`"), "{twice}");
    }

    #[test]
    fn secrets_in_the_file_are_rejected_and_not_repeated() {
        let key = "e2b_0123456789";
        let message = resolve(vec![provider(|it| it.api_key_env = Some(key.into()))]).expect_err("a key").to_string();
        assert!(message.contains("not a key") && !message.contains(key), "{message}");

        let mut config = WorkspaceConfig::default();
        for url in ["postgres://me:hidden@host/db", "postgres://host/db?password=hidden"] {
            config.records.url = Some(url.into());
            let message = config.resolve(Path::new("/data"), &nothing).expect_err("a password").to_string();
            assert!(message.contains("url_env") && !message.contains("hidden"), "{message}");
        }
        config.records = RecordsConfig { url: None, url_env: Some("DATABASE_URL".into()) };
        let resolved = config.resolve(Path::new("/data"), &nothing).expect("good");
        assert!(resolved.records.location(&nothing).expect_err("not set").to_string().contains("DATABASE_URL"));
        let set = |name: &str| (name == "DATABASE_URL").then(|| "postgres://me:hidden@host/db".to_owned());
        let location = resolved.records.location(&set).expect("set");
        assert!(location.expose().contains("hidden") && !format!("{location:?}").contains("hidden"));
    }
}
