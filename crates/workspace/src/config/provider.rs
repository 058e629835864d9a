//! One provider in the configuration: its address, the limits of its plan, and its prices. Defaults
//! depend on the kind of service.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Mistake, Variables, amount, mistake};
use crate::ledger::Usd;
use crate::name::ProviderName;
use crate::provider::{Plan, Price};

/// The variable from which E2B's own clients read the key.
const KEY_VARIABLE: &str = "E2B_API_KEY";
const TEMPLATE: &str = "base";

const HOUR: u64 = 3600;
pub(super) const DAY: u64 = 24 * HOUR;

/// A service that runs sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// Its name in commands and records.
    #[schemars(with = "String")]
    pub name: ProviderName,
    /// What it is.
    pub kind: ProviderKind,
    /// Whose service it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "by the URLs: `managed` without, `self_hosted` with one"))]
    pub deployment_mode: Option<DeploymentMode>,
    /// The environment variable that holds the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = KEY_VARIABLE))]
    pub api_key_env: Option<String>,
    /// URL of the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "by `domain`"))]
    pub api_url: Option<String>,
    /// What is appended to `PORT-SANDBOX.`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "E2B's"))]
    pub domain: Option<String>,
    /// One URL for the traffic of all sandboxes, for a server without a domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "`api_url` where no `domain` is set"))]
    pub sandbox_url: Option<String>,
    /// The template of a sandbox unless a command names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = TEMPLATE))]
    pub template: Option<String>,
    /// The size of a sandbox, and the largest that a workspace may ask for.
    #[serde(default, skip_serializing_if = "ResourcesConfig::is_empty")]
    pub resources: ResourcesConfig,
    /// Limits of what was bought. A limit that is absent comes from the preset; without a preset
    /// there is none.
    #[serde(default)]
    pub plan: PlanConfig,
    /// What a running sandbox costs; the parts add up.
    #[serde(default)]
    pub price: PriceConfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProviderKind {
    /// A service that speaks E2B's protocol.
    E2b,
    /// The server of this machine: found, or started on demand.
    Local,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentMode {
    /// E2B's cloud.
    Managed,
    /// A cluster or a Sandbar server of the user's own.
    SelfHosted,
}

/// The default size of a sandbox, and the largest that a request may ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourcesConfig {
    /// Processors of a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "the provider's"))]
    pub cpu_count: Option<u32>,
    /// MiB of memory of a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "the provider's"))]
    pub memory_mb: Option<u32>,
    /// MiB of disk of a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "the provider's"))]
    pub disk_mb: Option<u32>,
    /// Most processors that a workspace may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cpu_count: Option<u32>,
    /// Most MiB of memory that a workspace may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory_mb: Option<u32>,
    /// Most MiB of disk that a workspace may ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_disk_mb: Option<u32>,
}

impl ResourcesConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits of the plan. A missing limit comes from the preset; without a preset it is unlimited.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanConfig {
    /// A plan of E2B's. The other keys of the plan override it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "`base` for E2B's cloud"))]
    pub preset: Option<Preset>,
    /// Longest life of a sandbox; a workspace rotates before it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "the preset's; a day, 30 days for `local`"))]
    pub longest_lifetime_seconds: Option<u64>,
    /// Most sandboxes at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "the preset's"))]
    pub concurrent_sandboxes: Option<u32>,
    /// Most creations in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "the preset's"))]
    pub creations_per_minute: Option<u32>,
    /// Minutes of sandboxes in a calendar month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minutes_per_month: Option<u64>,
}

/// E2B's plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// A sandbox lives for at most an hour.
    Base,
    /// A sandbox lives for at most a day.
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

/// The approximate hourly price of E2B's default size.
const E2B_USD_PER_HOUR: f64 = 0.10;

/// The price of a running sandbox: the sum of these parts.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PriceConfig {
    /// Price of an hour of one sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "`0.10` for E2B's cloud or with a preset, else `0`; none beside another price"))]
    pub usd_per_hour: Option<f64>,
    /// Price of an hour of each processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_cpu_hour: Option<f64>,
    /// Price of an hour of each GiB of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_gib_hour: Option<f64>,
    /// Price of a creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_creation: Option<f64>,
}

impl PriceConfig {
    fn is_empty(&self) -> bool {
        let Self { usd_per_hour, usd_per_cpu_hour, usd_per_gib_hour, usd_per_creation } = self;
        [usd_per_hour, usd_per_cpu_hour, usd_per_gib_hour, usd_per_creation].iter().all(|part| part.is_none())
    }
}

impl ProviderConfig {
    /// A provider with all defaults.
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

    pub(super) fn check(&self, key: &str) -> Result<(), Mistake> {
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
            // The error omits the value: it may be a key.
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

    /// Fills in the defaults of this kind of service.
    pub(super) fn with_defaults(&self) -> Self {
        let mut with_defaults = self.clone();
        with_defaults.template.get_or_insert_with(|| TEMPLATE.to_owned());
        let e2b = self.kind == ProviderKind::E2b;
        let mode = e2b.then(|| {
            let self_hosted = self.api_url.is_some() || self.sandbox_url.is_some() || self.domain.is_some();
            let guessed = if self_hosted { DeploymentMode::SelfHosted } else { DeploymentMode::Managed };
            self.deployment_mode.unwrap_or(guessed)
        });
        with_defaults.deployment_mode = mode;
        if e2b {
            with_defaults.api_key_env.get_or_insert_with(|| KEY_VARIABLE.to_owned());
            if self.domain.is_none() {
                // A server without a domain serves everything on one listener and routes to
                // sandboxes by headers.
                with_defaults.sandbox_url = self.sandbox_url.clone().or_else(|| self.api_url.clone());
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
        with_defaults.plan = PlanConfig {
            preset,
            longest_lifetime_seconds: own.longest_lifetime_seconds.or(bought.longest_lifetime_seconds),
            concurrent_sandboxes: own.concurrent_sandboxes.or(bought.concurrent_sandboxes),
            creations_per_minute: own.creations_per_minute.or(bought.creations_per_minute),
            minutes_per_month: own.minutes_per_month.or(bought.minutes_per_month),
        };
        if self.price.is_empty() {
            let hour = if managed || preset.is_some() { E2B_USD_PER_HOUR } else { 0.0 };
            with_defaults.price.usd_per_hour = Some(hour);
        }
        with_defaults
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            longest_lifetime: self.plan.longest_lifetime_seconds.map(Duration::from_secs),
            concurrent_sandboxes: self.plan.concurrent_sandboxes,
            creations_per_minute: self.plan.creations_per_minute,
            minutes_per_month: self.plan.minutes_per_month,
        }
    }

    /// The price of its sandboxes.
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

/// The providers without a configuration file: the service that `E2B_*` variables name, then this
/// machine.
pub(super) fn from_variables(variables: Variables<'_>) -> Vec<ProviderConfig> {
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
