//! Sandboxes that were made for workspaces and that no record names: those of processes that died,
//! or gave up waiting, while one was being made for them. They cost until their time is over,
//! unless a sweep ends them.
//!
//! A sandbox may hold work that is nowhere else, so a sweep ends none by a guess:
//!
//! - The sandbox's id decides, whatever its provider is called: one server may have two names, and
//!   names change.
//! - Its creation stands in the ledger of these records, and names no other sandbox.
//! - A sandbox whose workspace has a record is an orphan only if that record is at rest in a
//!   sandbox that was made later.
//! - While this version cannot read the row of any workspace, there are no orphans: that row may
//!   name any sandbox.
//! - One of this machine's server is swept only by that server.
//! - It is paused and reported first, and ended a day later. The day has to pass by the wall clock
//!   and by the steady clocks of the processes that watched, so that neither a restart nor a clock
//!   that is set makes it shorter.
//! - A sandbox that runs is never ended. One that a person resumed is paused again, and its day
//!   starts over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::PoisonError;
use std::time::Duration;

use futures::TryStreamExt;
use jiff::Timestamp;
use sdk::model::{ListedSandbox, SandboxState};
use sdk::{ListQuery, Pause, SandboxError, SandboxId};
use serde::Serialize;
use tracing::{info, warn};
use uuid::Uuid;

use super::Workspaces;
use crate::chain::chain;
use crate::clock::{earlier, later};
use crate::house::{House, Watched};
use crate::name::ProviderName;
use crate::provider::{ANSWER_TIME, CREATION, Provider};
use crate::records::{Creation, OrphanRecord, RecordsError, UsageQuery, WorkspaceRecord, WorkspaceState};
use crate::snapshot::ProjectId;
use crate::workspace::{METADATA, OpenError, Place, read_details};

/// A creation may take so long until its sandbox stands in a record. The process that asked for it
/// has given up by then.
const CREATION_TIME: Duration = Duration::from_secs(300);
/// How far a provider's clock may be from ours.
const SKEW: Duration = Duration::from_secs(24 * 3600);
/// From when an orphan is paused and reported until it is ended.
pub const ORPHAN_GRACE: Duration = Duration::from_secs(24 * 3600);
/// For so long a server keeps the record of a local orphan that it does not own. Another server on
/// the same records ends its own orphans sooner; afterwards the sandbox is taken for removed.
const FOREIGN_RECORD_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);

/// A sandbox that was made for a workspace and that no record names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Orphan {
    pub provider: ProviderName,
    #[serde(rename = "sandboxID")]
    pub sandbox: String,
    pub workspace: String,
    #[serde(skip)]
    runs: bool,
    /// Under which its run stands in the ledger.
    #[serde(skip)]
    booked: ProviderName,
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Found for the first time: paused, where the provider can.
    pub found: Vec<Orphan>,
    /// Known for a day.
    pub ended: Vec<Orphan>,
}

/// Orphans of the providers that answered.
struct Found {
    orphans: Vec<Orphan>,
    answered: HashSet<ProviderName>,
    /// Every row of the records could be read. Else there are no orphans.
    complete: bool,
}

/// What the records say of sandboxes.
pub(crate) struct Named {
    records: BTreeMap<String, WorkspaceRecord>,
    ids: HashSet<String>,
    /// Workspaces whose rows cannot be read.
    unreadable: Vec<String>,
}

impl Workspaces {
    /// Sandboxes that were made for workspaces of these records and that none of them names or can
    /// need. Providers that do not answer are left out. Nothing is paused or ended.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn orphans(&self) -> Result<Vec<Orphan>, OpenError> {
        Ok(self.find_orphans(&|_| true).await?.orphans)
    }

    /// The orphans that sweeps have found and not ended yet. No provider is asked.
    ///
    /// # Errors
    /// The records cannot be read.
    pub async fn recorded_orphans(&self) -> Result<Vec<OrphanRecord>, OpenError> {
        Ok(self.house.records.orphans().await?)
    }

    async fn find_orphans(&self, owns: &(dyn Fn(&SandboxId) -> bool + Sync)) -> Result<Found, OpenError> {
        let (mut candidates, mut answered) = (Vec::new(), HashSet::new());
        let now = self.house.settings.clock.now();
        for provider in self.house.asked_for(None).await {
            let rows = match provider.client().await {
                Ok(client) => {
                    let rows = client.within(ANSWER_TIME).list(ListQuery::new()).try_collect::<Vec<_>>().await;
                    rows.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let Some(mut rows) = self.house.heard(provider, rows) else { continue };
            answered.insert(provider.name().clone());
            let own = |row: &ListedSandbox| !provider.is_local() || row.sandbox_id.parse().is_ok_and(|id| owns(&id));
            rows.retain(|row| row.metadata.contains_key(METADATA) && own(row));
            let ledger = self.house.creations_of(&rows).await?;
            for row in rows {
                let before = earlier(now, CREATION_TIME);
                let Some(creation) = ledger.of(&row).filter(|creation| creation.at <= before).cloned() else {
                    continue;
                };
                let orphan = Orphan {
                    provider: provider.name().clone(),
                    workspace: row.metadata.get(METADATA).cloned().unwrap_or_default(),
                    runs: row.state == SandboxState::Running,
                    booked: creation.provider.clone(),
                    sandbox: row.sandbox_id,
                };
                let others = ledger.finished();
                candidates.push((orphan, creation, others));
            }
        }
        // Read last: what a record names by now is no orphan.
        let named = self.named().await?;
        let complete = self.house.note_unreadable(&named.unreadable);
        let orphans = candidates
            .into_iter()
            .filter(|(orphan, creation, others)| named.is_orphan(&orphan.sandbox, &orphan.workspace, creation, others))
            .map(|(orphan, ..)| orphan);
        Ok(Found { orphans: orphans.collect(), answered, complete })
    }

    /// Every sandbox that a record speaks of.
    async fn named(&self) -> Result<Named, OpenError> {
        Named::new(self.house.records.workspaces_and_unreadable().await?)
    }

    /// Pauses and reports orphans that are found for the first time, and ends those that have been
    /// known, and paused, for a day. Of sandboxes of this machine's server only those are looked at
    /// that `owns` says are the caller's own. Does nothing while a row of a workspace cannot be
    /// read.
    ///
    /// # Errors
    /// The records cannot be read or written. A sandbox that could not be ended is not among those
    /// returned.
    pub async fn sweep(&self, owns: &(dyn Fn(&SandboxId) -> bool + Sync)) -> Result<Swept, OpenError> {
        let (records, clock) = (&self.house.records, &self.house.settings.clock);
        let Found { orphans, answered, complete } = self.find_orphans(owns).await?;
        if !complete {
            return Ok(Swept::default());
        }
        let mut known: HashMap<SandboxId, OrphanRecord> =
            records.orphans().await?.into_iter().map(|known| (known.sandbox.clone(), known)).collect();
        let mut swept = Swept::default();
        for orphan in orphans {
            let Ok(id) = orphan.sandbox.parse::<SandboxId>() else { continue };
            // A sandbox that two names of one server list is met twice.
            if swept.found.iter().chain(&swept.ended).any(|met| met.sandbox == orphan.sandbox) {
                continue;
            }
            let Orphan { provider, workspace, .. } = orphan.clone();
            let now = clock.now();
            match known.remove(&id) {
                None => {
                    let watched = self.house.watch(&id, Duration::ZERO);
                    records
                        .note_orphan(&OrphanRecord { sandbox: id.clone(), provider, workspace, seen_at: now, watched })
                        .await?;
                    self.pause_orphan(&orphan, &id).await;
                    swept.found.push(orphan);
                }
                // A person resumed it, or it could not be paused: its day starts over.
                Some(_) if orphan.runs => {
                    let watched = self.house.restart_watch(&id);
                    records
                        .note_orphan(&OrphanRecord { sandbox: id.clone(), provider, workspace, seen_at: now, watched })
                        .await?;
                    self.pause_orphan(&orphan, &id).await;
                }
                Some(recorded) => {
                    let watched = self.house.watch(&id, recorded.watched).max(recorded.watched);
                    // A clock that was ahead when it was found would keep it for as long.
                    let seen_at = recorded.seen_at.min(now);
                    records
                        .note_orphan(&OrphanRecord { sandbox: id.clone(), provider, workspace, seen_at, watched })
                        .await?;
                    let is_due = now >= later(seen_at, ORPHAN_GRACE) && watched >= ORPHAN_GRACE;
                    if is_due && self.end_orphan(&orphan, &id).await? {
                        swept.ended.push(orphan);
                    }
                }
            }
        }
        // What a provider does not list any more, or a record names by now, is none.
        let named = self.named().await?;
        for (id, recorded) in known {
            let is_local = self.house.orchestrator.provider(&recorded.provider).is_ok_and(Provider::is_local);
            let is_old = clock.now() >= later(recorded.seen_at, FOREIGN_RECORD_TIMEOUT);
            let is_ours = !is_local || owns(&id) || self.house.is_watched(&id) || is_old;
            if (answered.contains(&recorded.provider) && is_ours) || named.ids.contains(id.as_str()) {
                self.house.forget_watch(&id);
                records.forget_orphan(&id).await?;
            }
        }
        Ok(swept)
    }

    async fn pause_orphan(&self, orphan: &Orphan, id: &SandboxId) {
        let Orphan { provider, workspace, .. } = orphan;
        let paused = match self.house.orchestrator.provider(provider) {
            Ok(provider) if orphan.runs => match provider.client().await {
                Ok(client) => match client.within(ANSWER_TIME).pause(id, Pause::default()).await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                },
                Err(error) => Err(error.to_string()),
            },
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        let how = match paused {
            Ok(()) => {
                self.house.note_pause(id, false);
                self.close_booked(orphan, id).await;
                "it is paused".to_owned()
            }
            // Every sweep tries again.
            Err(_) if self.house.note_pause(id, true) => return,
            Err(error) => format!("it could not be paused: {error}"),
        };
        warn!(
            %provider, sandbox = %id, workspace,
            "a sandbox that was made for workspace {workspace} is in no record; {how}. It is ended after {} paused hours unless \
             `sandbar workspace attach {workspace} {id}` takes it",
            ORPHAN_GRACE.as_secs() / 3600,
        );
    }

    async fn end_orphan(&self, orphan: &Orphan, id: &SandboxId) -> Result<bool, OpenError> {
        let Ok(provider) = self.house.orchestrator.provider(&orphan.provider) else { return Ok(false) };
        let Ok(client) = provider.client().await else { return Ok(false) };
        // Pauses and answers of other providers took time.
        let named = self.named().await?;
        if !named.unreadable.is_empty() || named.ids.contains(id.as_str()) {
            return Ok(false);
        }
        match client.within(ANSWER_TIME).info(id).await {
            Ok(detail) if detail.listed.state == SandboxState::Running => return Ok(false),
            Ok(_) | Err(SandboxError::NotFound { .. }) => {}
            Err(error) => {
                warn!(sandbox = %id, %error, "an orphan is not ended: its state is unknown");
                return Ok(false);
            }
        }
        match client.within(ANSWER_TIME).kill(id).await {
            Ok(_) => {
                info!(provider = %orphan.provider, sandbox = %id, workspace = orphan.workspace, "ended an orphan");
                self.close_booked(orphan, id).await;
                self.house.forget_watch(id);
                self.house.records.forget_orphan(id).await?;
                Ok(true)
            }
            Err(error) => {
                warn!(sandbox = %id, %error, "an orphan could not be ended");
                Ok(false)
            }
        }
    }

    async fn close_booked(&self, orphan: &Orphan, id: &SandboxId) {
        let closed = self.house.records.close_interval(&orphan.booked, id, self.house.settings.clock.now());
        if let Err(error) = closed.await {
            warn!(error = %chain(&error), "the end of a run was not noted");
        }
    }
}

impl Named {
    /// Of what [`WorkspaceRecords::workspaces_and_unreadable`] answers.
    ///
    /// [`WorkspaceRecords::workspaces_and_unreadable`]: crate::records::WorkspaceRecords
    pub(crate) fn new((records, unreadable): (Vec<WorkspaceRecord>, Vec<String>)) -> Result<Self, OpenError> {
        let mut named = Self { records: BTreeMap::new(), ids: HashSet::new(), unreadable };
        for record in records {
            let details = read_details(&record)?;
            let moving = details.handover.into_iter().flat_map(|handover| [handover.old, handover.successor]).flatten();
            let places = moving.chain(details.retired).chain(details.left_behind).chain(details.lost);
            named.ids.extend(record.sandbox.iter().map(ToString::to_string));
            named.ids.extend(places.map(|Place { sandbox, .. }| sandbox.to_string()));
            named.records.insert(record.name.to_string(), record);
        }
        Ok(named)
    }

    /// Whether no record names a sandbox that was made for a workspace, and that workspace can do
    /// without it.
    pub(crate) fn is_orphan(
        &self,
        sandbox: &str,
        workspace: &str,
        creation: &Creation,
        finished: &HashMap<SandboxId, Timestamp>,
    ) -> bool {
        if !self.unreadable.is_empty() || self.ids.contains(sandbox) {
            return false;
        }
        let Some(record) = self.records.get(workspace) else { return true };
        // While a workspace is set up, moves or has no sandbox, this one may be the one it gets.
        let at_rest = record.state == WorkspaceState::Ready;
        let made_later = |own: &SandboxId| finished.get(own).is_some_and(|at| *at > creation.at);
        at_rest && record.sandbox.as_ref().is_some_and(made_later)
    }
}

/// The creations that these records know, of a while.
pub(crate) struct Creations(Vec<Creation>);

impl Creations {
    /// Which one made a sandbox. None where these records did not ask for it, or it is a copy of
    /// one that they asked for.
    pub(crate) fn of(&self, row: &ListedSandbox) -> Option<&Creation> {
        let id: Uuid = row.metadata.get(CREATION)?.parse().ok()?;
        let creation = self.0.iter().find(|creation| creation.id == id)?;
        creation.sandbox.as_ref().is_none_or(|made| made.as_str() == row.sandbox_id).then_some(creation)
    }

    /// When those sandboxes were asked for that were made.
    fn finished(&self) -> HashMap<SandboxId, Timestamp> {
        self.0.iter().filter_map(|creation| Some((creation.sandbox.clone()?, creation.at))).collect()
    }
}

impl House {
    /// What a provider answered. That one does not is logged when it begins, and when it is over: somebody asks every few minutes.
    fn heard<T>(&self, provider: &Provider, answer: Result<T, String>) -> Option<T> {
        let name = provider.name();
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(answer) => {
                if silent.remove(name) {
                    info!(provider = %name, "orphans are looked for again");
                }
                Some(answer)
            }
            Err(error) => {
                if silent.insert(name.clone()) {
                    warn!(provider = %name, error, "orphans are not looked for until it answers");
                }
                None
            }
        }
    }

    /// How long an orphan has been watched, by what was recorded and by this process.
    fn watch(&self, id: &SandboxId, before: Duration) -> Duration {
        let now = self.settings.clock.steady();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Watched { before, since: now, pause_failed: false };
        let Watched { before, since, .. } = *watched.entry(id.clone()).or_insert(fresh);
        before + now.saturating_sub(since)
    }

    /// Measures the time of an orphan from now on.
    fn restart_watch(&self, id: &SandboxId) -> Duration {
        let now = self.settings.clock.steady();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let pause_failed = watched.get(id).is_some_and(|watched| watched.pause_failed);
        watched.insert(id.clone(), Watched { before: Duration::ZERO, since: now, pause_failed });
        Duration::ZERO
    }

    fn is_watched(&self, id: &SandboxId) -> bool {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    /// Notes whether the pause of an orphan failed, and says whether the one before did.
    fn note_pause(&self, id: &SandboxId, failed: bool) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.get_mut(id).is_some_and(|watched| std::mem::replace(&mut watched.pause_failed, failed))
    }

    /// Logs once which rows cannot be read. True if all can.
    fn note_unreadable(&self, unreadable: &[String]) -> bool {
        let mut logged = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if *logged != unreadable {
            *logged = unreadable.to_vec();
            match unreadable {
                [] => info!("orphans are looked for again: every workspace can be read"),
                names => warn!(
                    workspaces = names.join(", "),
                    "orphans are not looked for: the rows of these workspaces cannot be read, and may name any \
                     sandbox; use the version of sandbar that wrote them"
                ),
            }
        }
        unreadable.is_empty()
    }

    fn forget_watch(&self, id: &SandboxId) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Providers that were ever asked for a sandbox, for a project or for any. Others have none, and the local one would be
    /// started by the question.
    pub(crate) async fn asked_for(&self, project: Option<&ProjectId>) -> Vec<&Provider> {
        let query = UsageQuery { project: project.map(ToString::to_string), ..UsageQuery::default() };
        let asked: HashSet<ProviderName> = match self.records.usage(&query).await {
            Ok(used) => {
                used.creations.into_iter().map(|creation| self.orchestrator.real_name(creation.provider)).collect()
            }
            Err(error) => {
                warn!(error = %chain(&error), "the books cannot be read");
                HashSet::new()
            }
        };
        let usable = |provider: &&Provider| provider.unusable().is_none() && asked.contains(provider.name());
        self.orchestrator.providers().iter().filter(usable).collect()
    }

    /// The creations by which these sandboxes may have been made. Others, of users of the same
    /// key, are not ours.
    pub(crate) async fn creations_of(&self, rows: &[ListedSandbox]) -> Result<Creations, RecordsError> {
        let started = rows.iter().filter_map(|row| row.started_at.parse::<Timestamp>().ok()).min();
        let Some(started) = started else { return Ok(Creations(Vec::new())) };
        let query = UsageQuery { since: Some(earlier(started, SKEW)), ..UsageQuery::default() };
        Ok(Creations(self.records.usage(&query).await?.creations))
    }
}
