//! What the configuration file says about workspaces: providers in order of preference, where objects and records are
//! kept, and budgets.
//!
//! The program reads the file and hands over these parts; nothing here reads the environment, a lookup is passed in.
//! Keys never stand in the file: it names the environment variable that has one.

mod own;
mod provider;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use sdk::Secret;
use serde::{Deserialize, Serialize};

pub use own::OwnServer;
pub use provider::{DeploymentMode, PlanConfig, Preset, PriceConfig, ProviderConfig, ProviderKind, ResourcesConfig};

use crate::ledger::Usd;
use crate::name::ProviderName;
use crate::snapshot::FolderName;

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
    /// Further names of providers: of those that turned out to be this machine's own server. Not in
    /// the file.
    #[serde(skip)]
    pub aliases: BTreeMap<ProviderName, ProviderName>,
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
    /// Folders that snapshots leave out besides those that are seen to be generated (`node_modules` beside a `package.json`),
    /// by name. What git tracks is kept in any case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leave_out: Vec<FolderName>,
    /// How many snapshots of a workspace are kept; absent: 5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_snapshots: Option<usize>,
    /// Those of so many last days are kept besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_snapshots_days: Option<u64>,
    /// Work in a sandbox is saved when the newest snapshot is older than so many minutes; absent: 10. 0 saves at pauses,
    /// commits and changes of sandbox only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every_minutes: Option<u64>,
    /// Folders that snapshots keep although they are seen to be generated.
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
        let named = if self.providers.is_empty() { provider::by_variables(variables) } else { self.providers.clone() };
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
        Ok(Self { providers, objects, records, budgets: self.budgets.clone(), aliases: self.aliases.clone() })
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
