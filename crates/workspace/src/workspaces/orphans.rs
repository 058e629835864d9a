//! Orphans: sandboxes that were created for workspaces and that no record names, left by processes
//! that died, or stopped waiting, during a creation. They cost until they end, unless a sweep kills
//! them.
//!
//! A sandbox may hold work that exists nowhere else, so a sweep never kills one on a guess:
//!
//! - Only the sandbox's id identifies it, not the name of its provider: one server may have two
//!   names, and names change.
//! - Its creation is recorded here, and names no other sandbox.
//! - A sandbox whose metadata names a workspace with a record is never an orphan, unless it also
//!   carries the id of an earlier workspace of that name. Without an id, in the metadata or in the
//!   record, it belongs to the workspace. What a workspace's own handovers left over, its lease
//!   holder kills (`settle.rs`).
//! - While this version cannot decode the row of any workspace, there are no orphans: that row may
//!   name any sandbox.
//! - A sandbox of a Sandbar server is swept only by that server, by whatever name another server
//!   knows it: a sweep skips providers that answer with another server's id.
//! - It is first paused and reported, and killed a day later. The day must pass by the wall clock
//!   and by the monotonic clocks of the observing processes, so that neither a restart nor a set
//!   clock shortens it.
//! - A running sandbox is never killed. One that a user resumed is paused again, and its day starts
//!   over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use sdk::model::SandboxState;
use sdk::{SandboxError, SandboxId};
use serde::Serialize;
use tracing::{info, warn};
use uuid::Uuid;

use super::{OwnServer, Workspaces};
use crate::clock::{earlier, later};
use crate::context::{WatchedOrphan, WorkspaceContext};
use crate::name::ProviderName;
use crate::provider::{ANSWER_TIMEOUT, CREATION, ListedSandbox, Provider, SandboxService};
use crate::records::{Creation, OrphanRecord, RecordsError, UsageQuery, WorkspaceRecord};
use crate::workspace::{METADATA, OpenError, SandboxRef, read_details};
use checkpoint::ProjectId;
use text::error_chain;

/// How long a creation may take until a record names its sandbox. The requesting process has given
/// up by then.
pub(crate) const CREATION_TIMEOUT: Duration = Duration::from_secs(300);
/// How far a provider's clock may differ from ours.
const SKEW: Duration = Duration::from_secs(24 * 3600);
/// How long an orphan stays paused before it is killed.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(24 * 3600);
/// How long a server keeps the record of a local orphan that it does not own. Another server on the
/// same records kills its own orphans sooner; afterwards the sandbox is assumed to be removed.
const FOREIGN_RECORD_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A sandbox that was created for a workspace whose record is removed, and that no record names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    pub provider: ProviderName,
    #[serde(rename = "sandboxID")]
    pub sandbox: String,
    pub workspace: String,
    #[serde(skip)]
    workspace_id: Option<Uuid>,
    #[serde(skip)]
    runs: bool,
    /// The provider name under which its run is recorded.
    #[serde(skip)]
    recorded_provider: ProviderName,
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Found for the first time: paused, where the provider can.
    pub found: Vec<Orphan>,
    /// Killed after the grace period.
    pub ended: Vec<Orphan>,
}

/// The orphans of the providers that answered.
struct OrphanScan {
    orphans: Vec<Orphan>,
    answered: HashSet<ProviderName>,
    /// Those of them that are Sandbar servers other than the one that sweeps.
    foreign: HashSet<ProviderName>,
    /// Whether every row of the records could be decoded. If not, there are no orphans.
    complete: bool,
}

/// The workspaces that have a record, and the sandboxes that the records name.
struct NamedSandboxes {
    /// With their ids, which records of older programs lack.
    workspaces: HashMap<String, Option<Uuid>>,
    ids: HashSet<String>,
    /// Workspaces whose rows cannot be decoded.
    unreadable: Vec<String>,
}

impl Workspaces {
    /// Sandboxes that were created for workspaces whose records are removed, and that no record
    /// names. Skips providers that do not answer. Pauses and kills nothing.
    ///
    /// # Errors
    /// [`OpenError::Records`] or [`OpenError::Damaged`].
    pub async fn orphans(&self) -> Result<Vec<Orphan>, OpenError> {
        Ok(self.find_orphans(None).await?.orphans)
    }

    /// The orphans that sweeps have found and not yet killed. Sends no request.
    ///
    /// # Errors
    /// [`OpenError::Records`].
    pub async fn recorded_orphans(&self) -> Result<Vec<OrphanRecord>, OpenError> {
        Ok(self.context.records.orphans().await?)
    }

    async fn find_orphans(&self, server: Option<&dyn OwnServer>) -> Result<OrphanScan, OpenError> {
        let (mut candidates, mut answered, mut foreign) = (Vec::new(), HashSet::new(), HashSet::new());
        let now = self.context.settings.clock.now();
        for provider in self.context.providers_used_by(None).await {
            let asked = match provider.service().await {
                Ok(service) => ask(service.as_ref(), server).await,
                Err(error) => Err(error.to_string()),
            };
            let Some((owner, mut rows)) = self.context.accept_answer(provider, asked) else { continue };
            answered.insert(provider.name().clone());
            if owner == ProviderOwner::OtherServer {
                foreign.insert(provider.name().clone());
                continue;
            }
            let is_shared = owner == ProviderOwner::Service && !provider.is_local();
            let own = |row: &ListedSandbox| is_shared || server.is_none_or(|server| server.has(&row.id));
            rows.retain(|row| row.metadata.contains_key(METADATA) && own(row));
            let ledger = self.context.creations_for(&rows).await?;
            for row in rows {
                let before = earlier(now, CREATION_TIMEOUT);
                let Some(creation) = ledger.find(&row).filter(|creation| creation.at <= before) else {
                    continue;
                };
                let orphan = Orphan {
                    provider: provider.name().clone(),
                    workspace: row.metadata.get(METADATA).cloned().unwrap_or_default(),
                    workspace_id: row.workspace_id(),
                    runs: row.state == SandboxState::Running,
                    recorded_provider: creation.provider.clone(),
                    sandbox: row.id.to_string(),
                };
                candidates.push(orphan);
            }
        }
        // Read last: a sandbox that a record names by now is no orphan.
        let named = self.named_sandboxes().await?;
        let complete = self.context.log_unreadable(&named.unreadable);
        let orphans = candidates.into_iter().filter(|orphan| named.is_orphan(orphan));
        Ok(OrphanScan { orphans: orphans.collect(), answered, foreign, complete })
    }

    /// All sandboxes that a record names.
    async fn named_sandboxes(&self) -> Result<NamedSandboxes, OpenError> {
        NamedSandboxes::new(self.context.records.workspaces_and_unreadable().await?)
    }

    /// Pauses and reports new orphans, and kills those that have been known and paused for a day.
    /// Of Sandbar servers, only the sandboxes that `server` has are considered. Does nothing
    /// while a row of a workspace cannot be decoded.
    ///
    /// # Errors
    /// [`OpenError::Records`] or [`OpenError::Damaged`]. A sandbox that could not be killed is not
    /// in the result.
    pub async fn sweep(&self, server: &dyn OwnServer) -> Result<Swept, OpenError> {
        let (records, clock) = (&self.context.records, &self.context.settings.clock);
        let OrphanScan { orphans, answered, foreign, complete } = self.find_orphans(Some(server)).await?;
        if !complete {
            return Ok(Swept::default());
        }
        let mut known: BTreeMap<SandboxId, OrphanRecord> =
            records.orphans().await?.into_iter().map(|known| (known.sandbox.clone(), known)).collect();
        let mut swept = Swept::default();
        for orphan in orphans {
            let Ok(id) = orphan.sandbox.parse::<SandboxId>() else { continue };
            // Two names of one server list the same sandbox twice.
            if swept.found.iter().chain(&swept.ended).any(|met| met.sandbox == orphan.sandbox) {
                continue;
            }
            let Orphan { provider, workspace, .. } = orphan.clone();
            let now = clock.now();
            match known.remove(&id) {
                None => {
                    let watched = self.context.watch(&id, Duration::ZERO);
                    records
                        .record_orphan(&OrphanRecord {
                            sandbox: id.clone(),
                            provider,
                            workspace,
                            seen_at: now,
                            watched,
                        })
                        .await?;
                    self.pause_orphan(&orphan, &id).await;
                    swept.found.push(orphan);
                }
                // A user resumed it, or it could not be paused: its day starts over.
                Some(_) if orphan.runs => {
                    let watched = self.context.restart_watch(&id);
                    records
                        .record_orphan(&OrphanRecord {
                            sandbox: id.clone(),
                            provider,
                            workspace,
                            seen_at: now,
                            watched,
                        })
                        .await?;
                    self.pause_orphan(&orphan, &id).await;
                }
                Some(recorded) => {
                    let watched = self.context.watch(&id, recorded.watched).max(recorded.watched);
                    // A clock that was ahead when it was found must not prolong the grace period.
                    let seen_at = recorded.seen_at.min(now);
                    records
                        .record_orphan(&OrphanRecord { sandbox: id.clone(), provider, workspace, seen_at, watched })
                        .await?;
                    let is_due = now >= later(seen_at, ORPHAN_GRACE) && watched >= ORPHAN_GRACE;
                    if is_due && self.kill_orphan(&orphan, &id).await? {
                        swept.ended.push(orphan);
                    }
                }
            }
        }
        // Forgets orphans that their provider no longer lists, or that a record names by now.
        let named = self.named_sandboxes().await?;
        for (id, recorded) in known {
            let is_local = self.context.orchestrator.provider(&recorded.provider).is_ok_and(Provider::is_local);
            let may_be_other_s = is_local || foreign.contains(&recorded.provider);
            let is_old = clock.now() >= later(recorded.seen_at, FOREIGN_RECORD_TIMEOUT);
            let is_ours = !may_be_other_s || server.has(&id) || self.context.is_watched(&id) || is_old;
            let is_named = named.ids.contains(id.as_str());
            if (answered.contains(&recorded.provider) && is_ours) || is_named {
                self.context.forget_watch(&id);
                records.forget_orphan(&id).await?;
            }
        }
        Ok(swept)
    }

    async fn pause_orphan(&self, orphan: &Orphan, id: &SandboxId) {
        let Orphan { provider, workspace, .. } = orphan;
        let paused = match self.context.orchestrator.provider(provider) {
            Ok(provider) if orphan.runs => match provider.service().await {
                Ok(service) => match tokio::time::timeout(ANSWER_TIMEOUT, service.pause(id)).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err(format!("no answer within {ANSWER_TIMEOUT:?}")),
                },
                Err(error) => Err(error.to_string()),
            },
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let how = match paused {
            Ok(()) => {
                self.context.record_pause_failure(id, false);
                self.close_recorded_interval(orphan, id).await;
                "it is paused".to_owned()
            }
            // Every sweep retries.
            Err(_) if self.context.record_pause_failure(id, true) => return,
            Err(error) => format!("it could not be paused: {error}"),
        };
        warn!(
            %provider, sandbox = %id, workspace,
            "a sandbox that was made for workspace {workspace} is in no record; {how}. It is ended after {} paused hours unless \
             `sandbar workspace attach {workspace} {id}` takes it",
            ORPHAN_GRACE.as_secs() / 3600,
        );
    }

    async fn kill_orphan(&self, orphan: &Orphan, id: &SandboxId) -> Result<bool, OpenError> {
        let Ok(provider) = self.context.orchestrator.provider(&orphan.provider) else { return Ok(false) };
        let Ok(service) = provider.service().await else { return Ok(false) };
        // Pausing others and waiting for providers took time, so the records are read again.
        let named = self.named_sandboxes().await?;
        if !named.is_orphan(orphan) {
            return Ok(false);
        }
        match service.inspect(id).await {
            Ok(found) if found.state == SandboxState::Running => return Ok(false),
            Ok(_) | Err(SandboxError::NotFound { .. }) => {}
            Err(error) => {
                warn!(sandbox = %id, %error, "orphan not killed: its state is unknown");
                return Ok(false);
            }
        }
        match service.kill(id).await {
            Ok(()) => {
                info!(provider = %orphan.provider, sandbox = %id, workspace = orphan.workspace, "killed an orphan");
                self.close_recorded_interval(orphan, id).await;
                self.context.forget_watch(id);
                self.context.records.forget_orphan(id).await?;
                Ok(true)
            }
            Err(error) => {
                warn!(sandbox = %id, %error, "an orphan could not be killed");
                Ok(false)
            }
        }
    }

    async fn close_recorded_interval(&self, orphan: &Orphan, id: &SandboxId) {
        let closed =
            self.context.records.close_interval(&orphan.recorded_provider, id, self.context.settings.clock.now());
        if let Err(error) = closed.await {
            warn!(error = %error_chain(&error), "the end of a run could not be recorded");
        }
    }
}

/// Who a provider's sandboxes belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProviderOwner {
    /// A service without servers of its users.
    Service,
    /// The Sandbar server that sweeps, by whatever name.
    OwnServer,
    OtherServer,
}

/// The owner of a provider's sandboxes, and the sandboxes. Without a server, all are listed.
async fn ask(
    service: &dyn SandboxService,
    server: Option<&dyn OwnServer>,
) -> Result<(ProviderOwner, Vec<ListedSandbox>), String> {
    let owner = match server {
        None => ProviderOwner::Service,
        Some(server) => match service.capabilities().await {
            // Some services refuse unknown paths with another status than 404.
            Ok(None) => ProviderOwner::Service,
            Err(error) if !error.is_service_trouble() => ProviderOwner::Service,
            Ok(Some(found)) if found.server_id.as_deref().is_some_and(|id| server.is(id)) => ProviderOwner::OwnServer,
            Ok(Some(_)) => return Ok((ProviderOwner::OtherServer, Vec::new())),
            Err(error) => return Err(error.to_string()),
        },
    };
    let rows = service.list(None).await.map_err(|error| error.to_string())?;
    Ok((owner, rows))
}

impl NamedSandboxes {
    /// From the result of [`WorkspaceRecords::workspaces_and_unreadable`].
    ///
    /// [`WorkspaceRecords::workspaces_and_unreadable`]: crate::records::WorkspaceRecords
    fn new((records, unreadable): (Vec<WorkspaceRecord>, Vec<String>)) -> Result<Self, OpenError> {
        let mut named = Self { workspaces: HashMap::new(), ids: HashSet::new(), unreadable };
        for record in records {
            let details = read_details(&record)?;
            named.workspaces.insert(record.name.to_string(), details.id);
            let moving = details.handover.into_iter().flat_map(|handover| [handover.old, handover.successor]).flatten();
            let places = moving.chain(details.retired).chain(details.left_behind).chain(details.lost);
            named.ids.extend(record.sandbox.iter().map(ToString::to_string));
            named.ids.extend(places.map(|SandboxRef { sandbox, .. }| sandbox.to_string()));
        }
        Ok(named)
    }

    /// Whether no record names a sandbox, and none is that of the workspace it was created for.
    fn is_orphan(&self, Orphan { sandbox, workspace, workspace_id, .. }: &Orphan) -> bool {
        let is_of_record = self.workspaces.get(workspace).is_some_and(|id| may_be_same(*id, *workspace_id));
        self.unreadable.is_empty() && !self.ids.contains(sandbox) && !is_of_record
    }
}

/// Whether two ids of workspaces with one name may be of the same workspace.
fn may_be_same(id: Option<Uuid>, other: Option<Uuid>) -> bool {
    id.zip(other).is_none_or(|(id, other)| id == other)
}

/// The recorded creations of a period.
pub(crate) struct Creations(Vec<Creation>);

impl Creations {
    /// The creation of a sandbox. [`None`] if these records did not request it, or it is a copy of
    /// one that they requested.
    pub(crate) fn find(&self, row: &ListedSandbox) -> Option<&Creation> {
        let id: Uuid = row.metadata.get(CREATION)?.parse().ok()?;
        let creation = self.0.iter().find(|creation| creation.id == id)?;
        creation.sandbox.as_ref().is_none_or(|made| *made == row.id).then_some(creation)
    }
}

impl WorkspaceContext {
    /// Unwraps a provider's answer. A failure is logged once when it starts and once when it ends,
    /// since sweeps run every few minutes.
    fn accept_answer<T>(&self, provider: &Provider, answer: Result<T, String>) -> Option<T> {
        let name = provider.name();
        let mut silent = self.silent.lock();
        match answer {
            Ok(answer) => {
                if silent.remove(name) {
                    info!(provider = %name, "the provider answers again: sweeping its orphans");
                }
                Some(answer)
            }
            Err(error) => {
                if silent.insert(name.clone()) {
                    warn!(provider = %name, error, "orphans are not swept until the provider answers");
                }
                None
            }
        }
    }

    /// How long an orphan has been observed: the recorded time plus that of this process.
    fn watch(&self, id: &SandboxId, before: Duration) -> Duration {
        let now = self.settings.clock.monotonic();
        let mut watched = self.watched.lock();
        let fresh = WatchedOrphan { before, since: now, pause_failed: false };
        let WatchedOrphan { before, since, .. } = *watched.entry(id.clone()).or_insert(fresh);
        before + now.saturating_sub(since)
    }

    /// Restarts the observation of an orphan.
    fn restart_watch(&self, id: &SandboxId) -> Duration {
        let now = self.settings.clock.monotonic();
        let mut watched = self.watched.lock();
        let pause_failed = watched.get(id).is_some_and(|watched| watched.pause_failed);
        watched.insert(id.clone(), WatchedOrphan { before: Duration::ZERO, since: now, pause_failed });
        Duration::ZERO
    }

    fn is_watched(&self, id: &SandboxId) -> bool {
        self.watched.lock().contains_key(id)
    }

    /// Records whether the pause of an orphan failed, and returns whether the previous one did.
    fn record_pause_failure(&self, id: &SandboxId, failed: bool) -> bool {
        let mut watched = self.watched.lock();
        watched.get_mut(id).is_some_and(|watched| std::mem::replace(&mut watched.pause_failed, failed))
    }

    /// Logs once which rows cannot be decoded. Returns true if there are none.
    fn log_unreadable(&self, unreadable: &[String]) -> bool {
        let mut logged = self.unreadable.lock();
        if *logged != unreadable {
            *logged = unreadable.to_vec();
            match unreadable {
                [] => info!("orphans are swept again: every workspace can be read"),
                names => warn!(
                    workspaces = names.join(", "),
                    "orphans are not swept: the rows of these workspaces cannot be read, and may name any \
                     sandbox; use the version of sandbar that wrote them"
                ),
            }
        }
        unreadable.is_empty()
    }

    fn forget_watch(&self, id: &SandboxId) {
        self.watched.lock().remove(id);
    }

    /// The providers that were ever asked for a sandbox, by a project or at all. Others have none,
    /// and asking the local one would start it.
    pub(crate) async fn providers_used_by(&self, project: Option<&ProjectId>) -> Vec<&Provider> {
        let query = UsageQuery { project: project.map(ToString::to_string), ..UsageQuery::default() };
        let used: HashSet<ProviderName> = match self.records.usage(&query).await {
            Ok(used) => {
                used.creations.into_iter().map(|creation| self.orchestrator.real_name(creation.provider)).collect()
            }
            Err(error) => {
                warn!(error = %error_chain(&error), "the recorded usage cannot be read");
                HashSet::new()
            }
        };
        let usable = |provider: &&Provider| provider.unusable().is_none() && used.contains(provider.name());
        self.orchestrator.providers().iter().filter(usable).collect()
    }

    /// The recorded creations that may have created these sandboxes. Other sandboxes belong to
    /// other users of the same key.
    pub(crate) async fn creations_for(&self, rows: &[ListedSandbox]) -> Result<Creations, RecordsError> {
        let started = rows.iter().filter_map(|row| row.started_at).min();
        let Some(started) = started else { return Ok(Creations(Vec::new())) };
        let query = UsageQuery { since: Some(earlier(started, SKEW)), ..UsageQuery::default() };
        Ok(Creations(self.records.usage(&query).await?.creations))
    }
}
