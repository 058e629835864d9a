//! Finds a place for a sandbox: providers are tried in order, and the answer says who took it and why others did not.
//!
//! Trouble of a provider (no key, out of reach, at a limit) leads to the next one. A request that a provider refuses as
//! wrong is wrong: it is reported, not tried elsewhere.
//!
//! Before a sandbox is asked for, the server must have answered something within [`ANSWER_TIME`]: making one may rightly
//! take longer than people should wait for a host that swallows everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sdk::{CallError, Client, Create, CreateError, Sandbox};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::breaker::Admission;
use super::placement::{CreateRequest, OrchestratorError, Placed, Skipped};
use super::resources::Sizing;
use super::{ANSWER_TIME, PlanReached, Provider};
use crate::config::{Mistake, ProviderKind, Variables, WorkspaceConfig};
use crate::ledger::months;
use crate::mask::Mask;
use crate::name::ProviderName;
use crate::provider::LocalServer;
use crate::records::{Creation, Interval, Records, RecordsError, Size, UsageQuery};

/// The metadata by which a sandbox is known to be in our books.
pub(crate) const CREATION: &str = "sandbar.creation";
/// For the sandbox itself, of a service that somebody else can stand in for. One that answers drop by drop costs no more. What
/// is made after that is found by its metadata.
const CREATE_TIME: Duration = Duration::from_secs(9);
/// A service that is full may ask for more; another one is asked instead.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Writers of one provider's health that may get in between.
const HEALTH_TRIES: u32 = 5;

/// Places sandboxes with providers.
pub struct Orchestrator {
    providers: Vec<Provider>,
    /// Further names of providers, for records that were written under them.
    aliases: BTreeMap<ProviderName, ProviderName>,
    records: Arc<dyn Records>,
}

/// What became of one try.
enum Outcome {
    Placed(Box<Placed>),
    Next(String),
}

impl Orchestrator {
    pub fn new(providers: Vec<Provider>, records: Arc<dyn Records>) -> Self {
        Self { providers, aliases: BTreeMap::new(), records }
    }

    /// The name of the provider that a name stands for.
    pub(crate) fn real_name(&self, name: ProviderName) -> ProviderName {
        self.aliases.get(&name).cloned().unwrap_or(name)
    }

    /// By a resolved configuration.
    ///
    /// # Errors
    /// A configuration without providers.
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
    /// There is none of that name.
    pub fn provider(&self, name: &ProviderName) -> Result<&Provider, OrchestratorError> {
        let name = self.aliases.get(name).unwrap_or(name);
        self.providers.iter().find(|provider| provider.name() == name).ok_or_else(|| {
            let known = self.providers.iter().map(|provider| provider.name().to_string()).collect();
            OrchestratorError::UnknownProvider { name: name.clone(), known }
        })
    }

    /// Makes a sandbox with the first provider that can.
    ///
    /// Dropping the future gives up waiting: a sandbox that was made nonetheless ends by its lifetime, and its creation
    /// stays in the books.
    ///
    /// # Errors
    /// [`OrchestratorError::NobodyCould`] with every provider's reason; or the request is wrong.
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
                    warn!(provider = %provider.name(), reason, "passed over");
                    skipped.push(Skipped { provider: provider.name().clone(), reason });
                }
            }
        }
        Err(OrchestratorError::NobodyCould { skipped })
    }

    /// Whether the plan of a provider has room for one more sandbox.
    ///
    /// # Errors
    /// The records cannot be read, or there is no such provider.
    pub async fn room(&self, provider: &ProviderName) -> Result<Result<(), PlanReached>, OrchestratorError> {
        Ok(self.admits(self.provider(provider)?).await?)
    }

    async fn admits(&self, provider: &Provider) -> Result<Result<(), PlanReached>, RecordsError> {
        let query = UsageQuery {
            since: Some(months::this(Timestamp::now()).from),
            project: None,
            provider: Some(provider.name().clone()),
        };
        let used = self.records.usage(&query).await?;
        Ok(provider.plan().admits(&used, Timestamp::now()))
    }

    async fn try_one(&self, provider: &Provider, request: &CreateRequest) -> Result<Outcome, OrchestratorError> {
        if let Some(unusable) = provider.unusable() {
            return Ok(Outcome::Next(unusable.to_string()));
        }
        if let Err(reached) = self.admits(provider).await? {
            return Ok(Outcome::Next(reached.to_string()));
        }
        if let Some(LeftAlone { until, reason }) = self.left_alone(provider.name()).await? {
            let reason = format!("it failed repeatedly and is left alone until {until:.0}; the last time: {reason}");
            return Ok(Outcome::Next(reason));
        }
        let client = match provider.client().await {
            Ok(client) => client,
            Err(unusable) => {
                let reason = unusable.to_string();
                self.note_health(provider.name(), Health::Bad(&reason)).await?;
                return Ok(Outcome::Next(reason));
            }
        };
        let (sizing, longest) = match Sizing::of(&client.within(ANSWER_TIME)).await {
            Ok(answer) => answer,
            Err(error) => return self.trouble(provider, error).await,
        };
        let template = request.template.as_deref().unwrap_or_else(|| provider.template());
        let lifetime = provider.plan().lifetime(request.lifetime);
        let lifetime = longest.map_or(lifetime, |longest| lifetime.min(Duration::from_secs(longest)));
        // Its end may come while no process is there to extend it: a sandbox that is paused keeps what no snapshot has.
        let mut create = Create::template(template).timeout(lifetime).pause_on_timeout();
        for (name, value) in &request.env {
            create = create.env(name, value.expose());
        }
        for (key, value) in &request.metadata {
            create = create.metadata(key, value);
        }
        let create =
            match sizing.apply(create, request.resources, &provider.config.resources, provider.name(), template) {
                Ok(create) => create,
                Err(refused) => {
                    self.note_health(provider.name(), Health::Good).await?;
                    return Err(refused.into());
                }
            };
        self.ask(provider, &client, create, lifetime, request).await
    }

    /// Asks for the sandbox itself. The creation is in the books before, so that none is forgotten.
    async fn ask(
        &self,
        provider: &Provider,
        client: &Client,
        create: Create,
        lifetime: Duration,
        request: &CreateRequest,
    ) -> Result<Outcome, OrchestratorError> {
        let creation = Creation {
            id: Uuid::new_v4(),
            at: Timestamp::now(),
            provider: provider.name().clone(),
            payer: request.payer.clone(),
            sandbox: None,
        };
        self.records.begin_creation(&creation).await?;
        let key = creation.id.simple().to_string();
        let create = create.metadata(CREATION, &key).idempotency_key(&key);
        // Others can be asked, so that nobody waits for a service that wants to be asked later.
        let client = match provider.config.kind {
            ProviderKind::E2b => client.within(CREATE_TIME),
            // The first one on a machine that is busy may take longer, and is the last that can be asked.
            ProviderKind::Local => client.clone(),
        };
        let sandbox = match client.waiting_at_most(LONGEST_WAIT).create(create).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                if certainly_not_made(&error) {
                    self.records.drop_creation(creation.id).await?;
                }
                return match error {
                    CreateError::Call(error) if !is_wrong(&error) => {
                        let outcome = self.trouble(provider, error).await?;
                        Ok(outcome.masked(request))
                    }
                    source => {
                        let source = masked(source, request);
                        self.note_health(provider.name(), Health::Good).await?;
                        Err(OrchestratorError::Refused { provider: provider.name().clone(), source })
                    }
                };
            }
        };
        let placed = placed(provider, sandbox, creation.at, lifetime, request).await;
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
        self.note_health(provider.name(), Health::Good).await?;
        Ok(Outcome::Placed(Box::new(placed)))
    }

    /// A call that failed for a reason that lies with the provider.
    async fn trouble(&self, provider: &Provider, error: CallError) -> Result<Outcome, OrchestratorError> {
        let reason = error.to_string();
        let health = if is_ill(&error) { Health::Bad(&reason) } else { Health::Good };
        self.note_health(provider.name(), health).await?;
        Ok(Outcome::Next(reason))
    }

    /// Until when the breaker keeps everybody away. Taking the part of the probe is noted before anything is sent.
    async fn left_alone(&self, provider: &ProviderName) -> Result<Option<LeftAlone>, RecordsError> {
        let mut last = String::new();
        for _ in 0..HEALTH_TRIES {
            let now = Timestamp::now();
            let seen = self.records.health(provider).await?;
            match seen.breaker.admit(now) {
                Admission::Allowed => return Ok(None),
                Admission::Refused { until } => return Ok(Some(LeftAlone { until, reason: seen.reason })),
                Admission::Probe(probing) => {
                    if self.records.change_health(provider, &seen, probing, &seen.reason).await? {
                        debug!(%provider, "probing");
                        return Ok(None);
                    }
                }
            }
            last = seen.reason;
        }
        // So many are trying at once that one of them has the probe.
        Ok(Some(LeftAlone { until: Timestamp::now(), reason: last }))
    }

    async fn note_health(&self, provider: &ProviderName, health: Health<'_>) -> Result<(), RecordsError> {
        for _ in 0..HEALTH_TRIES {
            let seen = self.records.health(provider).await?;
            let (breaker, reason) = match health {
                Health::Good => (seen.breaker.succeeded(), ""),
                Health::Bad(reason) => (seen.breaker.failed(Timestamp::now()), reason),
            };
            if breaker == seen.breaker || self.records.change_health(provider, &seen, breaker, reason).await? {
                return Ok(());
            }
        }
        // Others note the same at the same time; one of many is enough.
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Health<'a> {
    Good,
    Bad(&'a str),
}

/// Nobody is sent to a provider until then.
struct LeftAlone {
    until: Timestamp,
    reason: String,
}

/// With what the provider says of it; a provider that is silent now has still made it.
async fn placed(
    provider: &Provider,
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
    let mut ends_at = Timestamp::now().checked_add(lifetime).unwrap_or(Timestamp::MAX);
    match sandbox.within(ANSWER_TIME).info().await {
        Ok(detail) => {
            let listed = detail.listed;
            size = Size { cpu_count: listed.cpu_count, memory_mb: listed.memory_mb, disk_mb: listed.disk_size_mb };
            // Only the length is taken from the provider: its clock is not ours.
            let moment = |text: &str| text.parse::<Timestamp>().ok();
            if let (Some(start), Some(end)) = (moment(&listed.started_at), moment(&listed.end_at)) {
                ends_at = asked_at.saturating_add(end.duration_since(start)).unwrap_or(ends_at);
            }
        }
        Err(error) => warn!(sandbox = %sandbox.id(), %error, "its size and end are guessed"),
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

/// What a service says of a request may repeat the values in it.
fn mask(request: &CreateRequest) -> Mask {
    Mask::of_variables(request.env.iter().map(|(name, value)| (name.as_str(), value.expose())))
}

impl Outcome {
    fn masked(self, request: &CreateRequest) -> Self {
        match self {
            Self::Next(reason) => Self::Next(mask(request).mask(&reason).into_owned()),
            placed @ Self::Placed(_) => placed,
        }
    }
}

fn masked(error: CreateError, request: &CreateRequest) -> CreateError {
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

/// The request itself is at fault, so that others would refuse it too. A key that is not accepted, and a call that a
/// server does not have, are the provider's.
fn is_wrong(error: &CallError) -> bool {
    matches!(error, CallError::Invalid { .. })
}

/// The service is not well, rather than full or unwilling.
fn is_ill(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. }
        | CallError::ConnectionLost { .. }
        | CallError::DeadlineExceeded { .. }
        | CallError::Protocol { .. } => true,
        CallError::Service { status, .. } => *status >= 500,
        _ => false,
    }
}

/// Whether the provider can have made no sandbox. After a lost answer nobody knows.
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
