//! Places a sandbox: tries providers in order, and reports which one took it and why others were
//! skipped.
//!
//! A failure of a provider (no key, unreachable, at a limit) leads to the next one. A request that
//! a provider rejects as invalid is reported at once and not sent to others.
//!
//! Before a create, the server must answer a query within [`ANSWER_TIMEOUT`]. A create may take
//! longer than a user should wait for a host that drops all packets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sdk::{CallError, Create, CreateError, Sandbox};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::breaker::Admission;
use super::placement::{CreateRequest, OrchestratorError, Placed, SkippedProvider};
use super::resources::Sizing;
use super::service::SandboxService;
use super::{PlanReached, Provider};
use crate::clock::{Clock, later};
use crate::config::{Mistake, ProviderKind, Variables, WorkspaceConfig};
use crate::ledger::months;
use crate::name::ProviderName;
use crate::provider::LocalServer;
use crate::records::{Creation, Interval, Records, RecordsError, Size, UsageQuery};
use secret::Mask;

/// The metadata key that links a sandbox to its recorded creation.
pub(crate) const CREATION: &str = "sandbar.creation";
/// The timeout of a create at a service that has a fallback, also when the response trickles in. A
/// sandbox created after the timeout is found by its metadata.
const CREATE_TIMEOUT: Duration = Duration::from_secs(9);
/// Attempts of a compare-and-swap on a provider's health.
const HEALTH_ATTEMPTS: u32 = 5;

/// Places sandboxes with providers.
pub struct Orchestrator {
    providers: Vec<Provider>,
    /// Other names of providers, for records written under them.
    aliases: BTreeMap<ProviderName, ProviderName>,
    records: Arc<dyn Records>,
    pub(crate) clock: Clock,
}

/// The result of trying one provider.
enum Outcome {
    Placed(Box<Placed>),
    Next(String),
}

impl Orchestrator {
    pub fn new(providers: Vec<Provider>, records: Arc<dyn Records>) -> Self {
        Self { providers, aliases: BTreeMap::new(), records, clock: Clock::System }
    }

    /// Resolves an alias.
    pub(crate) fn real_name(&self, name: ProviderName) -> ProviderName {
        self.aliases.get(&name).cloned().unwrap_or(name)
    }

    /// From a resolved configuration.
    ///
    /// # Errors
    /// [`Mistake`] for a configuration without providers.
    pub fn from_config(
        config: &WorkspaceConfig,
        variables: Variables<'_>,
        local: &Arc<dyn LocalServer>,
        records: Arc<dyn Records>,
    ) -> Result<Self, Mistake> {
        let made = |provider: &crate::config::ProviderConfig| Provider::new(provider.clone(), variables, local);
        let providers: Vec<Provider> = config.providers.iter().map(made).collect();
        if providers.is_empty() {
            return Err(Mistake { key: "providers".into(), problem: "there is none".into() });
        }
        Ok(Self { aliases: config.aliases.clone(), ..Self::new(providers, records) })
    }

    /// In order of preference.
    pub fn providers(&self) -> &[Provider] {
        &self.providers
    }

    /// # Errors
    /// [`OrchestratorError::UnknownProvider`].
    pub fn provider(&self, name: &ProviderName) -> Result<&Provider, OrchestratorError> {
        let name = self.aliases.get(name).unwrap_or(name);
        self.providers.iter().find(|provider| provider.name() == name).ok_or_else(|| {
            let known = self.providers.iter().map(|provider| provider.name().to_string()).collect();
            OrchestratorError::UnknownProvider { name: name.clone(), known }
        })
    }

    /// Creates a sandbox with the first provider that can.
    ///
    /// Dropping the future stops waiting: a sandbox created nevertheless ends with its lifetime,
    /// and its creation stays recorded.
    ///
    /// # Errors
    /// [`OrchestratorError::NoProvider`] with every provider's reason;
    /// [`OrchestratorError::Refused`] or [`OrchestratorError::Resources`] for an invalid request.
    pub async fn create(&self, request: &CreateRequest) -> Result<Placed, OrchestratorError> {
        let candidates: Vec<&Provider> = match &request.provider {
            Some(name) => vec![self.provider(name)?],
            None => {
                let wanted = request.prefer.clone().map(|name| self.real_name(name));
                let preferred = |provider: &&Provider| Some(provider.name()) == wanted.as_ref();
                let (first, others): (Vec<_>, Vec<_>) = self.providers.iter().partition(preferred);
                first.into_iter().chain(others).collect()
            }
        };
        let mut skipped = Vec::new();
        for provider in candidates {
            match self.try_one(provider, request).await? {
                Outcome::Placed(placed) => {
                    info!(provider = %placed.provider, sandbox = %placed.sandbox.id(), "made a sandbox");
                    return Ok(Placed { skipped, ..*placed });
                }
                Outcome::Next(reason) => {
                    warn!(provider = %provider.name(), reason, "skipped the provider");
                    skipped.push(SkippedProvider { provider: provider.name().clone(), reason });
                }
            }
        }
        Err(OrchestratorError::NoProvider { skipped })
    }

    /// Whether the plan of a provider allows one more sandbox.
    ///
    /// # Errors
    /// [`OrchestratorError::Records`] or [`OrchestratorError::UnknownProvider`].
    pub async fn check_plan(&self, provider: &ProviderName) -> Result<Result<(), PlanReached>, OrchestratorError> {
        Ok(self.check_capacity(self.provider(provider)?).await?)
    }

    async fn check_capacity(&self, provider: &Provider) -> Result<Result<(), PlanReached>, RecordsError> {
        let query = UsageQuery {
            since: Some(months::current(self.clock.now()).from),
            project: None,
            provider: Some(provider.name().clone()),
        };
        let used = self.records.usage(&query).await?;
        Ok(provider.plan().admits(&used, self.clock.now()))
    }

    async fn try_one(&self, provider: &Provider, request: &CreateRequest) -> Result<Outcome, OrchestratorError> {
        if let Some(unusable) = provider.unusable() {
            return Ok(Outcome::Next(unusable.to_string()));
        }
        if let Err(reached) = self.check_capacity(provider).await? {
            return Ok(Outcome::Next(reached.to_string()));
        }
        if let Some(Tripped { until, reason }) = self.check_breaker(provider.name()).await? {
            let reason = format!("it failed repeatedly and is left alone until {until:.0}; the last time: {reason}");
            return Ok(Outcome::Next(reason));
        }
        let service = match provider.service().await {
            Ok(service) => service,
            Err(unusable) => {
                let reason = unusable.to_string();
                self.record_health(provider.name(), Health::Bad(&reason)).await?;
                return Ok(Outcome::Next(reason));
            }
        };
        let (sizing, longest) = match Sizing::query(service.as_ref()).await {
            Ok(answer) => answer,
            Err(error) => return self.skip_after_error(provider, error).await,
        };
        let template = request.template.as_deref().unwrap_or_else(|| provider.template());
        let lifetime = provider.plan().lifetime(request.lifetime);
        let lifetime = longest.map_or(lifetime, |longest| lifetime.min(Duration::from_secs(longest)));
        // The lifetime may end while no process runs to extend it: a paused sandbox keeps what no
        // checkpoint has.
        let mut create = Create::template(template).timeout(lifetime).pause_on_timeout();
        for (name, value) in &request.env {
            create = create.env(name, value.expose());
        }
        let create =
            match sizing.apply(create, request.resources, &provider.config.resources, provider.name(), template) {
                Ok(create) => create,
                Err(refused) => {
                    self.record_health(provider.name(), Health::Good).await?;
                    return Err(refused.into());
                }
            };
        self.ask(provider, service.as_ref(), create, lifetime, request).await
    }

    /// Sends the create. The creation is recorded first, so that none is missed.
    async fn ask(
        &self,
        provider: &Provider,
        service: &dyn SandboxService,
        create: Create,
        lifetime: Duration,
        request: &CreateRequest,
    ) -> Result<Outcome, OrchestratorError> {
        let creation = Creation {
            id: Uuid::new_v4(),
            at: self.clock.now(),
            provider: provider.name().clone(),
            payer: request.payer.clone(),
            sandbox: None,
        };
        self.records.begin_creation(&creation).await?;
        let key = creation.id.simple().to_string();
        let create = create.idempotency_key(&key);
        let metadata = request.metadata.clone().into_iter().chain([(CREATION.to_owned(), key)]).collect();
        // Does not honour a long Retry-After: other providers can be tried.
        let timeout = match provider.config.kind {
            ProviderKind::E2b => Some(CREATE_TIMEOUT),
            // The first sandbox on a busy machine may take longer, and the local server is the last
            // fallback.
            ProviderKind::Local => None,
        };
        let sandbox = match service.create(create, &metadata, timeout).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                if certainly_not_made(&error) {
                    self.records.drop_creation(creation.id).await?;
                }
                return match error {
                    CreateError::Call(error) if !is_invalid(&error) => {
                        let outcome = self.skip_after_error(provider, error).await?;
                        Ok(outcome.mask(request))
                    }
                    source => {
                        let source = mask_error(source, request);
                        self.record_health(provider.name(), Health::Good).await?;
                        Err(OrchestratorError::Refused { provider: provider.name().clone(), source })
                    }
                };
            }
        };
        let placed = self.describe(provider, service, sandbox, creation.at, lifetime, request).await;
        let interval = Interval {
            provider: provider.name().clone(),
            sandbox: placed.sandbox.id().clone(),
            payer: request.payer.clone(),
            size: placed.size,
            started_at: placed.started_at,
            until: placed.ends_at,
            ended_at: None,
        };
        self.records.finish_creation(creation.id, &interval).await?;
        self.record_health(provider.name(), Health::Good).await?;
        Ok(Outcome::Placed(Box::new(placed)))
    }

    /// Completes the placement with the provider's details of the sandbox. It exists even if the
    /// provider does not answer now.
    async fn describe(
        &self,
        provider: &Provider,
        service: &dyn SandboxService,
        sandbox: Sandbox,
        asked_at: Timestamp,
        lifetime: Duration,
        request: &CreateRequest,
    ) -> Placed {
        let wanted = request.resources;
        let mut size = Size {
            cpu_count: wanted.cpu_count.unwrap_or_default(),
            memory_mb: wanted.memory_mb.unwrap_or_default(),
            disk_mb: wanted.disk_mb.unwrap_or_default(),
        };
        let mut ends_at = later(self.clock.now(), lifetime);
        match service.inspect(sandbox.id()).await {
            Ok(found) => {
                size = found.size;
                // Takes only the duration from the provider: its clock may differ.
                if let (Some(start), Some(end)) = (found.started_at, found.ends_at) {
                    ends_at = asked_at.saturating_add(end.duration_since(start)).unwrap_or(ends_at);
                }
            }
            Err(error) => {
                warn!(sandbox = %sandbox.id(), %error, "sandbox size and end unknown, assuming the requested ones");
            }
        }
        Placed {
            sandbox,
            provider: provider.name().clone(),
            skipped: Vec::new(),
            limits: provider.limits(),
            size,
            started_at: asked_at,
            ends_at,
        }
    }

    /// Handles a failed call whose cause lies with the provider.
    async fn skip_after_error(&self, provider: &Provider, error: CallError) -> Result<Outcome, OrchestratorError> {
        let reason = error.to_string();
        let health = if is_outage(&error) { Health::Bad(&reason) } else { Health::Good };
        self.record_health(provider.name(), health).await?;
        Ok(Outcome::Next(reason))
    }

    /// Until when the breaker rejects requests. Becoming the probe is recorded before any request.
    async fn check_breaker(&self, provider: &ProviderName) -> Result<Option<Tripped>, RecordsError> {
        let mut last = String::new();
        for _ in 0..HEALTH_ATTEMPTS {
            let now = self.clock.now();
            let seen = self.records.health(provider).await?;
            match seen.breaker.admit(now) {
                Admission::Allowed => return Ok(None),
                Admission::Refused { until } => return Ok(Some(Tripped { until, reason: seen.reason })),
                Admission::Probe(probing) => {
                    if self.records.change_health(provider, &seen, probing, &seen.reason).await? {
                        debug!(%provider, "probing");
                        return Ok(None);
                    }
                }
            }
            last = seen.reason;
        }
        // Under such contention another process has become the probe.
        Ok(Some(Tripped { until: self.clock.now(), reason: last }))
    }

    async fn record_health(&self, provider: &ProviderName, health: Health<'_>) -> Result<(), RecordsError> {
        for _ in 0..HEALTH_ATTEMPTS {
            let seen = self.records.health(provider).await?;
            let (breaker, reason) = match health {
                Health::Good => (seen.breaker.after_success(), ""),
                Health::Bad(reason) => (seen.breaker.after_failure(self.clock.now()), reason),
            };
            if breaker == seen.breaker || self.records.change_health(provider, &seen, breaker, reason).await? {
                return Ok(());
            }
        }
        // Concurrent writers record the same result; one of them suffices.
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Health<'a> {
    Good,
    Bad(&'a str),
}

/// The breaker is open until then.
struct Tripped {
    until: Timestamp,
    reason: String,
}

/// A service's error message may repeat values of the request.
fn mask(request: &CreateRequest) -> Mask {
    Mask::for_variables(request.env.iter().map(|(name, value)| (name.as_str(), value.expose())))
}

impl Outcome {
    fn mask(self, request: &CreateRequest) -> Self {
        match self {
            Self::Next(reason) => Self::Next(mask(request).mask(&reason).into_owned()),
            placed @ Self::Placed(_) => placed,
        }
    }
}

fn mask_error(error: CreateError, request: &CreateRequest) -> CreateError {
    let mask = |message: String| mask(request).mask(&message).into_owned();
    match error {
        CreateError::TemplateNotFound { template, message } => {
            CreateError::TemplateNotFound { template, message: mask(message) }
        }
        CreateError::KeyTaken { message } => CreateError::KeyTaken { message: mask(message) },
        CreateError::Call(CallError::Invalid { call, message }) => {
            CallError::Invalid { call, message: mask(message) }.into()
        }
        other => other,
    }
}

/// Whether the request itself is invalid, so that other providers would reject it too. A rejected
/// key or an unsupported call is the provider's fault.
fn is_invalid(error: &CallError) -> bool {
    matches!(error, CallError::Invalid { .. })
}

/// Whether the service is failing, rather than at a limit or rejecting.
fn is_outage(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. }
        | CallError::ConnectionLost { .. }
        | CallError::DeadlineExceeded { .. }
        | CallError::Protocol { .. } => true,
        CallError::Service { status, .. } => *status >= 500,
        _ => false,
    }
}

/// Whether the provider cannot have created a sandbox. After a lost response this is unknown.
fn certainly_not_made(error: &CreateError) -> bool {
    matches!(
        error,
        CreateError::TemplateNotFound { .. }
            | CreateError::Call(
                CallError::Unreachable { .. }
                    | CallError::Unauthorized { .. }
                    | CallError::Limited { .. }
                    | CallError::Invalid { .. }
                    | CallError::Unsupported { .. },
            )
    )
}
