//! The keeper: one task a workspace. It knows when the sandbox ends and acts first: extends, rotates, pauses, stops; it
//! watches budgets and notices commits. What it decides by is in `decision`.

mod attend;
mod decision;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use sdk::{CallError, Sandbox, SandboxError, SandboxId};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use self::attend::needs_attention;
use self::decision::{Due, Facts, due, patience, stop_at};
use super::core::{Attached, Core, SavedFor, Turn};
use super::details::{Details, Place};
use super::error::{Unavailable, WorkspaceError};
use super::handover::{Target, Why};
use super::pause::Saving;
use super::wake::Found;
use crate::chain::chain;
use crate::clock::{earlier, later};
use crate::events::EventKind;
use crate::provider::ANSWER_TIME;
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::settings::Settings;

/// A program that opens a workspace for one command asks by itself; this is for those who stay.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Between two tries to end sandboxes that nobody works in.
const END_AGAIN: Duration = Duration::from_secs(30);
/// Work that a process touched and stays with is saved no earlier than this.
const UNSAVED_GRACE: Duration = Duration::from_secs(60);
/// What a provider answers to an extension may be off by this much.
pub(super) const SLACK: Duration = Duration::from_secs(5);

const NO_SUCCESSOR: &str = "The sandbox was paused: its end was near, and no other could take its place.";

/// What the keeper remembers between two looks.
struct Keeping {
    /// When a rotation of this sandbox failed last.
    failed: Option<(SandboxId, Timestamp)>,
    /// The provider lets this one live no longer.
    final_end: Option<SandboxId>,
    /// When a sandbox of which nothing is known is asked about.
    look_at: Timestamp,
    budget_at: Timestamp,
    commit_at: Option<Timestamp>,
    end_at: Timestamp,
    /// Before work that was touched is saved: a program that runs one command is gone by then, and leaves it to the next.
    unsaved_grace: Duration,
    /// When unsaved work was noticed, or a save of it failed.
    unsaved_since: Option<Timestamp>,
}

impl Keeping {
    /// With the first look after a while.
    fn begin(now: Timestamp, first: Duration, settings: &Settings) -> Self {
        Self {
            failed: None,
            final_end: None,
            look_at: later(now, first.min(settings.look_every)),
            budget_at: later(now, first.min(settings.budget_look)),
            commit_at: None,
            end_at: now,
            unsaved_grace: if first.is_zero() { Duration::ZERO } else { UNSAVED_GRACE },
            unsaved_since: None,
        }
    }
}

/// When unsaved work of a workspace is due to be saved.
fn unsaved_due(record: &WorkspaceRecord, details: &Details, settings: &Settings) -> Timestamp {
    later(details.saved_at.unwrap_or(record.created_at), settings.save_interval)
}

/// Keeps a workspace until it is closed or lost.
pub(super) async fn keep(core: Arc<Core>, stop: CancellationToken) {
    let settings = core.settings();
    let mut keeping = Keeping::begin(core.stable_now(), FIRST_LOOK, settings);
    while !stop.is_cancelled() {
        if core.holding.is_lost() {
            // Another process keeps it. The next call here takes it again.
            tokio::select! {
                () = stop.cancelled() => {}
                () = core.changed.notified() => {}
            }
            continue;
        }
        let next = match core.tend(&mut keeping).await {
            Ok(next) => next,
            // Whoever closes it meanwhile wants nothing more to be done.
            Err(_) if stop.is_cancelled() => return,
            Err(error) => {
                warn!(workspace = %core.name, error = %chain(&error), "the keeper could not do what is due");
                later(core.stable_now(), settings.rotate_again)
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = core.changed.notified() => {}
            () = tokio::time::sleep(core.until(next)) => {}
        }
    }
}

impl Core {
    /// How long it is until then, by [`Core::stable_now`].
    fn until(&self, moment: Timestamp) -> Duration {
        Duration::try_from(moment.duration_since(self.stable_now())).unwrap_or_default()
    }

    /// Does what is due, and says when to come again.
    async fn tend(&self, keeping: &mut Keeping) -> Result<Timestamp, WorkspaceError> {
        let mut next = later(self.stable_now(), self.settings().look_every);
        if let Some(at) = self.tend_broken_off(keeping).await? {
            next = next.min(at);
        }
        if let Some(at) = self.tend_retired(keeping).await? {
            next = next.min(at);
        }
        self.tend_expired().await?;
        let ready = self.is_ready().is_some();
        if ready {
            self.tend_first_snapshot().await?;
            if let Some(at) = self.tend_commits(keeping).await? {
                next = next.min(at);
            }
            if let Some(at) = self.save_unsaved(keeping).await? {
                next = next.min(at);
            }
            next = next.min(self.tend_budget(keeping).await?);
        } else if self.may_run() {
            next = next.min(self.tend_unknown(keeping).await?);
            if self.is_ready().is_some() {
                return Ok(self.stable_now());
            }
        }
        // It may have been paused or found meanwhile.
        let Some((attached, _)) = self.is_ready() else { return Ok(next) };
        match due(&self.facts(&attached, keeping)?, self.settings()) {
            Due::Wait(until) => Ok(next.min(until)),
            _ => {
                self.act(keeping).await?;
                Ok(self.stable_now())
            }
        }
    }

    /// A handover that broke off leaves a sandbox that nobody would extend. Whoever wants to work clears up at once.
    async fn tend_broken_off(&self, keeping: &Keeping) -> Result<Option<Timestamp>, WorkspaceError> {
        let moving = || self.seat().record.state == WorkspaceState::Moving;
        if !moving() {
            return Ok(None);
        }
        if self.stable_now() < keeping.look_at {
            return Ok(Some(keeping.look_at));
        }
        let turn = self.turn().await;
        self.check().await?;
        if moving() {
            self.settle(&turn).await?;
        }
        Ok(None)
    }

    /// The end of a workspace that is paused, and whose files are in a snapshot, so that nothing is woken for it.
    async fn tend_expired(&self) -> Result<(), WorkspaceError> {
        let over = || {
            let seat = self.seat();
            let stop_at = stop_at(seat.record.created_at, seat.record.expires_at, self.settings());
            let past = self.stable_now().min(self.now()) >= stop_at;
            seat.record.paused && seat.details.saved_at_pause.is_some() && past
        };
        if over() {
            let turn = self.turn().await;
            self.check().await?;
            if over() {
                self.stop_in_turn(&turn).await?;
            }
        }
        Ok(())
    }

    /// What a set-up made is saved as soon as somebody has the time for it: until then, nothing brings it back.
    async fn tend_first_snapshot(&self) -> Result<(), WorkspaceError> {
        if self.wants_first_snapshot() {
            let turn = self.turn().await;
            self.check().await?;
            self.first_snapshot(&turn).await;
        }
        Ok(())
    }

    /// The record speaks of a sandbox that runs, and nobody here has seen it.
    fn may_run(&self) -> bool {
        let seat = self.seat();
        seat.record.state == WorkspaceState::Ready && !seat.record.paused && seat.record.sandbox.is_some()
    }

    async fn tend_unknown(&self, keeping: &mut Keeping) -> Result<Timestamp, WorkspaceError> {
        if self.stable_now() >= keeping.look_at {
            keeping.look_at = later(self.stable_now(), self.settings().look_every);
            let turn = self.turn().await;
            self.check().await?;
            if self.is_ready().is_none() && self.may_run() {
                self.look_again(&turn).await?;
            }
        }
        Ok(keeping.look_at)
    }

    /// A while after somebody worked, a look whether they committed.
    async fn tend_commits(&self, keeping: &mut Keeping) -> Result<Option<Timestamp>, WorkspaceError> {
        if !self.touched.load(Ordering::Acquire) {
            return Ok(None);
        }
        let at = *keeping.commit_at.get_or_insert_with(|| later(self.stable_now(), self.settings().commit_look));
        if self.stable_now() < at {
            return Ok(Some(at));
        }
        keeping.commit_at = None;
        let turn = self.turn().await;
        self.check().await?;
        self.look_for_commit(&turn).await?;
        Ok(None)
    }

    /// Saves work that was touched when the newest snapshot is old. Commands go on meanwhile: the fence stays open.
    async fn save_unsaved(&self, keeping: &mut Keeping) -> Result<Option<Timestamp>, WorkspaceError> {
        let interval = self.settings().save_interval;
        if interval.is_zero() || !self.unsaved.load(Ordering::Acquire) {
            keeping.unsaved_since = None;
            return Ok(None);
        }
        let since = *keeping.unsaved_since.get_or_insert_with(|| self.stable_now());
        let due = self.unsaved_due_at().min(later(since, interval));
        let at = due.max(later(since, keeping.unsaved_grace.min(interval)));
        if self.stable_now() < at {
            return Ok(Some(at));
        }
        let turn = self.turn().await;
        self.check().await?;
        let Some((attached, _)) = self.is_ready() else { return Ok(None) };
        if self.save(&turn, &attached.sandbox, SavedFor::Interval).await.is_err() {
            // It is told by an event, and tried again after as long a time.
            let again = later(self.stable_now(), interval);
            keeping.unsaved_since = Some(again);
            return Ok(Some(again));
        }
        keeping.unsaved_since = None;
        Ok(None)
    }

    /// When unsaved work is due to be saved, by [`Core::stable_now`].
    fn unsaved_due_at(&self) -> Timestamp {
        let (now, wall) = (self.stable_now(), self.now());
        let seat = self.seat();
        let saved = seat.saved.filter(|(saved_at, _)| seat.details.saved_at == Some(*saved_at));
        if let Some((_, saved_at)) = saved {
            return later(saved_at, self.settings().save_interval);
        }
        // Written by the wall clock, which may have been set since: the earlier answer counts.
        let due = unsaved_due(&seat.record, &seat.details, self.settings());
        let by_wall = later(now, Duration::try_from(due.duration_since(wall)).unwrap_or_default());
        due.min(by_wall)
    }

    async fn tend_budget(&self, keeping: &mut Keeping) -> Result<Timestamp, WorkspaceError> {
        if self.stable_now() < keeping.budget_at {
            return Ok(keeping.budget_at);
        }
        keeping.budget_at = later(self.stable_now(), self.settings().budget_look);
        match self.within_budget().await {
            Err(Unavailable::OverBudget { limit, .. }) => {
                let turn = self.turn().await;
                self.check().await?;
                self.pause_for_budget(&turn, limit).await?;
            }
            Err(error) => return Err(error.into()),
            Ok(()) => {}
        }
        Ok(keeping.budget_at)
    }

    async fn tend_retired(&self, keeping: &mut Keeping) -> Result<Option<Timestamp>, WorkspaceError> {
        if self.seat().details.retired.is_empty() {
            // The next ones are ended at once.
            keeping.end_at = self.stable_now();
            return Ok(None);
        }
        if self.stable_now() >= keeping.end_at {
            keeping.end_at = later(self.stable_now(), END_AGAIN);
            let turn = self.turn().await;
            self.check().await?;
            self.end_retired(&turn).await?;
        }
        Ok(Some(keeping.end_at))
    }

    fn facts(&self, attached: &Attached, keeping: &Keeping) -> Result<Facts, WorkspaceError> {
        let seat = self.seat();
        let started_at = attached.started_at;
        let longest = self.house.orchestrator.provider(&seat.record.provider)?.plan().longest_lifetime;
        let id = attached.sandbox.id();
        let latest = if keeping.final_end.as_ref() == Some(id) {
            Some(attached.ends_at)
        } else {
            longest.map(|longest| later(started_at, longest))
        };
        Ok(Facts {
            now: self.stable_now(),
            wall: self.now(),
            started_at,
            ends_at: attached.ends_at,
            seen_at: attached.seen_at,
            latest,
            created_at: seat.record.created_at,
            expires_at: seat.record.expires_at,
            failed_at: keeping.failed.as_ref().filter(|(failed, _)| failed == id).map(|(_, at)| *at),
        })
    }

    /// Does what is due for the sandbox, once nobody else is at it.
    async fn act(&self, keeping: &mut Keeping) -> Result<(), WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let Some((attached, _)) = self.is_ready() else { return Ok(()) };
        let id = attached.sandbox.id().clone();
        let facts = self.facts(&attached, keeping)?;
        let patience = patience(&facts, self.settings());
        match due(&facts, self.settings()) {
            Due::Wait(_) => Ok(()),
            Due::Look => self.look_again(&turn).await,
            Due::Extend(lifetime) => self.extend(&turn, &attached, lifetime, keeping).await,
            Due::Rotate => {
                let target = Target::First(self.seat().record.provider.clone());
                let rotated = tokio::time::timeout(patience, self.hand_over_in_turn(&turn, target, Why::Rotation));
                let rotated = match rotated.await {
                    Ok(rotated) => rotated.map(drop),
                    Err(_) => Err(self.not_in_time(&turn, patience).await),
                };
                if rotated.is_err() {
                    keeping.failed = Some((id, self.stable_now()));
                }
                rotated
            }
            Due::Pause => {
                self.notice(NO_SUCCESSOR);
                self.pause_in_turn(&turn, Saving::Within(patience)).await
            }
            Due::Stop => match tokio::time::timeout(patience, self.stop_in_turn(&turn)).await {
                Ok(Err(WorkspaceError::Save(error))) => {
                    // A pause keeps the files where no snapshot could.
                    self.pause_in_turn(&turn, Saving::None).await?;
                    Err(error.into())
                }
                Ok(other) => other,
                Err(_) => {
                    self.pause_in_turn(&turn, Saving::None).await?;
                    Err(WorkspaceError::NotInTime { workspace: self.name.clone(), within: patience })
                }
            },
        }
    }

    /// A rotation that took so long that nothing but a pause is left.
    async fn not_in_time(&self, turn: &Turn<'_>, within: Duration) -> WorkspaceError {
        let error = WorkspaceError::NotInTime { workspace: self.name.clone(), within };
        self.tell(EventKind::HandoverFailed { reason: error.to_string() }).await;
        self.notice(NO_SUCCESSOR);
        self.pause_in_turn(turn, Saving::None).await.err().unwrap_or(error)
    }

    /// Asks the provider about the sandbox; wakes nothing.
    async fn look_again(&self, turn: &Turn<'_>) -> Result<(), WorkspaceError> {
        let Some(place) = self.place() else { return Ok(()) };
        match self.look(&place).await {
            Ok(Found::Running { sandbox, remaining, .. }) => {
                // The handle that is known may carry a token that a look does not give.
                let known = self.attached().map(|attached| attached.sandbox).filter(|known| known.id() == sandbox.id());
                self.attach(known.unwrap_or(sandbox), remaining);
                Ok(())
            }
            Ok(Found::Paused { .. }) => self.paused(turn, &place, None).await,
            Ok(Found::Gone) => self.gone(turn, &place).await,
            Err(error) => {
                // What was known is believed for a little longer.
                let settings = self.settings();
                let asked = earlier(self.stable_now(), settings.look_every.saturating_sub(settings.rotate_again));
                if let Some(attached) = &mut self.seat().attached {
                    attached.seen_at = asked;
                }
                Err(error)
            }
        }
    }

    async fn extend(
        &self,
        turn: &Turn<'_>,
        attached: &Attached,
        lifetime: Duration,
        keeping: &mut Keeping,
    ) -> Result<(), WorkspaceError> {
        let id = attached.sandbox.id();
        let Some(place) = self.place() else { return Ok(()) };
        match self.extend_to(turn, &attached.sandbox, &place, lifetime).await {
            Ok(()) => {}
            Err(WorkspaceError::Sandbox(SandboxError::NotFound { .. })) => return self.gone(turn, &place).await,
            Err(WorkspaceError::Sandbox(SandboxError::Call(CallError::Invalid { message, .. }))) => {
                info!(workspace = %self.name, message, "the provider lets the sandbox live no longer");
                keeping.final_end = Some(id.clone());
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        // Some providers say yes and give less.
        if self.attached().is_some_and(|attached| later(attached.ends_at, SLACK) < later(self.stable_now(), lifetime)) {
            keeping.final_end = Some(id.clone());
        }
        Ok(())
    }

    /// Lets the sandbox live so long from now, and notes how long the provider gave.
    pub(super) async fn extend_to(
        &self,
        turn: &Turn<'_>,
        sandbox: &Sandbox,
        place: &Place,
        lifetime: Duration,
    ) -> Result<(), WorkspaceError> {
        sandbox.within(ANSWER_TIME).set_timeout(lifetime).await?;
        self.look_again(turn).await?;
        let Some(attached) = self.attached() else { return Ok(()) };
        let until = later(self.now(), self.until(attached.ends_at));
        self.update(turn, |_, details| {
            if let Some(run) = &mut details.run {
                run.ends_at = until;
            }
        })
        .await?;
        self.house.records.extend_interval(&place.provider, &place.sandbox, until).await?;
        info!(workspace = %self.name, sandbox = %place, %until, "extended");
        self.tell(EventKind::Extended { sandbox: sandbox.id().to_string(), until }).await;
        Ok(())
    }
}
