//! The supervisor: one task per workspace. It knows when the sandbox ends and acts first: extends,
//! rotates, pauses, stops. It also checks budgets and detects commits. The module `decision`
//! decides what is due.

mod decision;
mod maintenance;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use sdk::{CallError, Sandbox, SandboxError, SandboxId};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::decision::{Due, Facts, action_timeout, due, stop_at};
pub(crate) use self::maintenance::maintenance_due;
use super::core::{Attached, OpGuard, SavedFor, WorkspaceCore};
use super::details::{Details, SandboxRef};
use super::error::{Unavailable, WorkspaceError};
use super::handover::{Target, Why};
use super::pause::Saving;
use super::resume::SandboxStatus;
use crate::clock::{earlier, later};
use crate::devserver::Start;
use crate::events::EventKind;
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::settings::Settings;
use text::error_chain;

/// A program that opens a workspace for one command inspects it by itself; this delay is for
/// long-running ones.
const FIRST_INSPECTION_DELAY: Duration = Duration::from_secs(5);
/// The interval between attempts to kill retired sandboxes.
const KILL_BACKOFF: Duration = Duration::from_secs(30);
/// How long after use a long-running process saves at the earliest.
const UNSAVED_GRACE: Duration = Duration::from_secs(60);
/// The tolerance of a provider's answer to an extension.
pub(super) const SLACK: Duration = Duration::from_secs(5);

const NO_SUCCESSOR: &str = "The sandbox was paused: its end was near, and no other could take its place.";

/// The state of the supervisor between two rounds.
struct SupervisorState {
    /// When a rotation of this sandbox last failed.
    failed: Option<(SandboxId, Timestamp)>,
    /// The sandbox that the provider does not extend further.
    final_end: Option<SandboxId>,
    /// When to inspect a sandbox of unknown state.
    inspect_at: Timestamp,
    budget_at: Timestamp,
    commit_at: Option<Timestamp>,
    end_at: Timestamp,
    /// How long to wait before a save after use: a program that runs one command has exited by
    /// then, and leaves it to the next process.
    unsaved_grace: Duration,
    /// When unsaved changes were noticed, or a save of them failed.
    unsaved_since: Option<Timestamp>,
}

impl SupervisorState {
    /// With the first round after `first`.
    fn begin(now: Timestamp, first: Duration, settings: &Settings) -> Self {
        Self {
            failed: None,
            final_end: None,
            inspect_at: later(now, first.min(settings.inspect_interval)),
            budget_at: later(now, first.min(settings.budget_check_interval)),
            commit_at: None,
            end_at: now,
            unsaved_grace: if first.is_zero() { Duration::ZERO } else { UNSAVED_GRACE },
            unsaved_since: None,
        }
    }
}

/// When unsaved changes of a workspace are due to be saved.
fn unsaved_due(record: &WorkspaceRecord, details: &Details, settings: &Settings) -> Timestamp {
    later(details.saved_at.unwrap_or(record.created_at), settings.save_interval)
}

/// Supervises a workspace until it is closed.
pub(super) async fn supervise(core: Arc<WorkspaceCore>, stop: CancellationToken) {
    let settings = core.settings();
    let mut supervisor = SupervisorState::begin(core.stable_now(), FIRST_INSPECTION_DELAY, settings);
    while !stop.is_cancelled() {
        if core.held_lease.is_lost() {
            // Another process supervises it. The next operation here retakes the lease.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = core.changed.notified() => {}
            }
            continue;
        }
        let next = match core.maintain_once(&mut supervisor).await {
            Ok(next) => next,
            // The workspace was closed meanwhile.
            Err(_) if stop.is_cancelled() => return,
            Err(error) => {
                warn!(workspace = %core.name, error = %error_chain(&error), "the supervisor could not do what is due");
                later(core.stable_now(), settings.rotate_backoff)
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = core.changed.notified() => {}
            () = tokio::time::sleep(core.until(next)) => {}
        }
    }
}

impl WorkspaceCore {
    /// The time left until then, by [`WorkspaceCore::stable_now`].
    fn until(&self, moment: Timestamp) -> Duration {
        Duration::try_from(moment.duration_since(self.stable_now())).unwrap_or_default()
    }

    /// Does what is due, and returns when to check again.
    async fn maintain_once(&self, supervisor: &mut SupervisorState) -> Result<Timestamp, WorkspaceError> {
        let mut next = later(self.stable_now(), self.settings().inspect_interval);
        if let Some(at) = self.maintain_interrupted_handover(supervisor).await? {
            next = next.min(at);
        }
        if let Some(at) = self.maintain_retired(supervisor).await? {
            next = next.min(at);
        }
        self.maintain_expired().await?;
        let ready = self.ready_sandbox().is_some();
        if ready {
            self.maintain_first_checkpoint().await?;
            if let Some(at) = self.maintain_commits(supervisor).await? {
                next = next.min(at);
            }
            if let Some(at) = self.save_unsaved(supervisor).await? {
                next = next.min(at);
            }
            next = next.min(self.maintain_budget(supervisor).await?);
        } else if self.may_run() {
            next = next.min(self.maintain_unknown(supervisor).await?);
            if self.ready_sandbox().is_some() {
                return Ok(self.stable_now());
            }
        }
        // It may have been paused or found meanwhile.
        let Some((attached, _)) = self.ready_sandbox() else { return Ok(next) };
        match due(&self.facts(&attached, supervisor)?, self.settings()) {
            Due::Wait(until) => Ok(next.min(until)),
            _ => {
                self.act(supervisor).await?;
                Ok(self.stable_now())
            }
        }
    }

    /// Settles an interrupted handover, which leaves a sandbox that no task extends. A caller that
    /// wants to use the workspace settles it at once.
    async fn maintain_interrupted_handover(
        &self,
        supervisor: &SupervisorState,
    ) -> Result<Option<Timestamp>, WorkspaceError> {
        let moving = || self.state().record.state == WorkspaceState::Moving;
        if !moving() {
            return Ok(None);
        }
        if self.stable_now() < supervisor.inspect_at {
            return Ok(Some(supervisor.inspect_at));
        }
        let op = self.begin_op().await;
        self.check().await?;
        if moving() {
            self.settle(&op).await?;
        }
        Ok(None)
    }

    /// Stops an expired workspace that is paused and saved, without resuming it.
    async fn maintain_expired(&self) -> Result<(), WorkspaceError> {
        let over = || {
            let state = self.state();
            let stop_at = stop_at(state.record.created_at, state.record.expires_at, self.settings());
            let past = self.stable_now().min(self.now()) >= stop_at;
            state.record.paused && state.details.saved_at_pause.is_some() && past
        };
        if over() {
            let op = self.begin_op().await;
            self.check().await?;
            if over() {
                self.stop_locked(&op).await?;
            }
        }
        Ok(())
    }

    /// Saves a first checkpoint after setup: until then, nothing can restore the workspace.
    async fn maintain_first_checkpoint(&self) -> Result<(), WorkspaceError> {
        if self.needs_first_checkpoint() {
            let op = self.begin_op().await;
            self.check().await?;
            self.save_first_checkpoint(&op).await;
        }
        Ok(())
    }

    /// Whether the record names a running sandbox that this process has not inspected.
    fn may_run(&self) -> bool {
        let state = self.state();
        state.record.state == WorkspaceState::Ready && !state.record.paused && state.record.sandbox.is_some()
    }

    async fn maintain_unknown(&self, supervisor: &mut SupervisorState) -> Result<Timestamp, WorkspaceError> {
        if self.stable_now() >= supervisor.inspect_at {
            supervisor.inspect_at = later(self.stable_now(), self.settings().inspect_interval);
            let op = self.begin_op().await;
            self.check().await?;
            if self.ready_sandbox().is_none() && self.may_run() {
                self.reinspect(&op).await?;
            }
        }
        Ok(supervisor.inspect_at)
    }

    /// Checks for a commit a while after use.
    async fn maintain_commits(&self, supervisor: &mut SupervisorState) -> Result<Option<Timestamp>, WorkspaceError> {
        if !self.touched.load(Ordering::Acquire) {
            return Ok(None);
        }
        let at =
            *supervisor.commit_at.get_or_insert_with(|| later(self.stable_now(), self.settings().commit_check_delay));
        if self.stable_now() < at {
            return Ok(Some(at));
        }
        supervisor.commit_at = None;
        let op = self.begin_op().await;
        self.check().await?;
        self.detect_commit(&op).await?;
        Ok(None)
    }

    /// Saves unsaved changes when the newest checkpoint is old. Commands continue meanwhile: the
    /// gate stays open.
    async fn save_unsaved(&self, supervisor: &mut SupervisorState) -> Result<Option<Timestamp>, WorkspaceError> {
        let interval = self.settings().save_interval;
        if interval.is_zero() || !self.unsaved.load(Ordering::Acquire) {
            supervisor.unsaved_since = None;
            return Ok(None);
        }
        let since = *supervisor.unsaved_since.get_or_insert_with(|| self.stable_now());
        let due = self.unsaved_due_at().min(later(since, interval));
        let at = due.max(later(since, supervisor.unsaved_grace.min(interval)));
        if self.stable_now() < at {
            return Ok(Some(at));
        }
        let op = self.begin_op().await;
        self.check().await?;
        let Some((attached, _)) = self.ready_sandbox() else { return Ok(None) };
        if self.save(&op, &attached.sandbox, SavedFor::Interval).await.is_err() {
            // An event reports it; the next attempt is after another interval.
            let again = later(self.stable_now(), interval);
            supervisor.unsaved_since = Some(again);
            return Ok(Some(again));
        }
        supervisor.unsaved_since = None;
        Ok(None)
    }

    /// When unsaved changes are due to be saved, by [`WorkspaceCore::stable_now`].
    fn unsaved_due_at(&self) -> Timestamp {
        let (now, wall) = (self.stable_now(), self.now());
        let state = self.state();
        let saved = state.saved.filter(|(saved_at, _)| state.details.saved_at == Some(*saved_at));
        if let Some((_, saved_at)) = saved {
            return later(saved_at, self.settings().save_interval);
        }
        // Recorded by the wall clock, which may have been set since: the earlier answer counts.
        let due = unsaved_due(&state.record, &state.details, self.settings());
        let by_wall = later(now, Duration::try_from(due.duration_since(wall)).unwrap_or_default());
        due.min(by_wall)
    }

    async fn maintain_budget(&self, supervisor: &mut SupervisorState) -> Result<Timestamp, WorkspaceError> {
        if self.stable_now() < supervisor.budget_at {
            return Ok(supervisor.budget_at);
        }
        supervisor.budget_at = later(self.stable_now(), self.settings().budget_check_interval);
        match self.check_budget().await {
            Err(Unavailable::OverBudget { limit, .. }) => {
                let op = self.begin_op().await;
                self.check().await?;
                self.pause_for_budget(&op, limit).await?;
            }
            Err(error) => return Err(error.into()),
            Ok(()) => {}
        }
        Ok(supervisor.budget_at)
    }

    async fn maintain_retired(&self, supervisor: &mut SupervisorState) -> Result<Option<Timestamp>, WorkspaceError> {
        let (none_retired, strays_due) = {
            let Details { retired, strays_due, .. } = &self.state().details;
            (retired.is_empty(), strays_due.map(|due| self.settings().clock.until(due)))
        };
        if none_retired && strays_due.is_none_or(|due| !due.is_zero()) {
            // The next ones are killed at once.
            supervisor.end_at = self.stable_now();
            return Ok(strays_due.map(|due| later(self.stable_now(), due)));
        }
        if self.stable_now() >= supervisor.end_at {
            supervisor.end_at = later(self.stable_now(), KILL_BACKOFF);
            let op = self.begin_op().await;
            self.check().await?;
            self.kill_retired(&op).await?;
        }
        Ok(Some(supervisor.end_at))
    }

    fn facts(&self, attached: &Attached, supervisor: &SupervisorState) -> Result<Facts, WorkspaceError> {
        let state = self.state();
        let started_at = attached.started_at;
        let longest = self.context.orchestrator.provider(&state.record.provider)?.plan().longest_lifetime;
        let id = attached.sandbox.id();
        let latest = if supervisor.final_end.as_ref() == Some(id) {
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
            created_at: state.record.created_at,
            expires_at: state.record.expires_at,
            failed_at: supervisor.failed.as_ref().filter(|(failed, _)| failed == id).map(|(_, at)| *at),
        })
    }

    /// Does what is due for the sandbox, under the operation lock.
    async fn act(&self, supervisor: &mut SupervisorState) -> Result<(), WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let Some((attached, _)) = self.ready_sandbox() else { return Ok(()) };
        let id = attached.sandbox.id().clone();
        let facts = self.facts(&attached, supervisor)?;
        let timeout = action_timeout(&facts, self.settings());
        match due(&facts, self.settings()) {
            Due::Wait(_) => Ok(()),
            Due::Inspect => self.reinspect(&op).await,
            Due::Extend(lifetime) => self.extend(&op, &attached, lifetime, supervisor).await,
            Due::Rotate => {
                let target = Target::First(self.state().record.provider.clone());
                let rotated = tokio::time::timeout(timeout, self.hand_over_locked(&op, target, Why::Rotation));
                let rotated = match rotated.await {
                    Ok(rotated) => rotated.map(drop),
                    Err(_) => Err(self.not_in_time(&op, timeout).await),
                };
                if rotated.is_err() {
                    supervisor.failed = Some((id, self.stable_now()));
                }
                rotated
            }
            Due::Pause => {
                self.add_notice(NO_SUCCESSOR);
                self.pause_locked(&op, Saving::Within(timeout)).await
            }
            Due::Stop => match tokio::time::timeout(timeout, self.stop_locked(&op)).await {
                Ok(Err(WorkspaceError::Save(error))) => {
                    // A pause keeps the files when no checkpoint could be saved.
                    self.pause_locked(&op, Saving::None).await?;
                    Err(error.into())
                }
                Ok(other) => other,
                Err(_) => {
                    self.pause_locked(&op, Saving::None).await?;
                    Err(WorkspaceError::NotInTime { workspace: self.name.clone(), within: timeout })
                }
            },
        }
    }

    /// Pauses after a rotation that timed out, and returns the error.
    async fn not_in_time(&self, op: &OpGuard<'_>, within: Duration) -> WorkspaceError {
        let error = WorkspaceError::NotInTime { workspace: self.name.clone(), within };
        self.emit(EventKind::HandoverFailed { reason: error.to_string() }).await;
        self.add_notice(NO_SUCCESSOR);
        self.pause_locked(op, Saving::None).await.err().unwrap_or(error)
    }

    /// Inspects the sandbox at its provider; resumes nothing.
    async fn reinspect(&self, op: &OpGuard<'_>) -> Result<(), WorkspaceError> {
        let Some(place) = self.current_sandbox() else { return Ok(()) };
        match self.inspect_sandbox(&place).await {
            Ok(SandboxStatus::Running { sandbox, remaining, .. }) => {
                // The known handle may carry a token that the inspection does not return.
                let known = self.attached().map(|attached| attached.sandbox).filter(|known| known.id() == sandbox.id());
                // Another client may have resumed it after its host lost power.
                if known.is_none() && self.restore_if_lost(op, &sandbox).await?.is_some() {
                    self.start_services_again(&sandbox, Start::AfterRestore).await;
                }
                self.attach(known.unwrap_or(sandbox), remaining);
                Ok(())
            }
            Ok(SandboxStatus::Paused { .. }) => self.record_paused(op, &place, None).await,
            Ok(SandboxStatus::Gone) => self.record_gone(op, &place).await,
            Err(error) => {
                // The last known state is used for a little longer.
                let settings = self.settings();
                let inspected_at =
                    earlier(self.stable_now(), settings.inspect_interval.saturating_sub(settings.rotate_backoff));
                if let Some(attached) = &mut self.state().attached {
                    attached.seen_at = inspected_at;
                }
                Err(error)
            }
        }
    }

    async fn extend(
        &self,
        op: &OpGuard<'_>,
        attached: &Attached,
        lifetime: Duration,
        supervisor: &mut SupervisorState,
    ) -> Result<(), WorkspaceError> {
        let id = attached.sandbox.id();
        let Some(place) = self.current_sandbox() else { return Ok(()) };
        match self.extend_to(op, &attached.sandbox, &place, lifetime).await {
            Ok(()) => {}
            // Providers answer this for a paused sandbox too.
            Err(error @ WorkspaceError::Sandbox(SandboxError::NotFound { .. })) => {
                self.reinspect(op).await?;
                return if self.attached().is_some() { Err(error) } else { Ok(()) };
            }
            Err(WorkspaceError::Sandbox(SandboxError::Call(CallError::Invalid { message, .. }))) => {
                info!(workspace = %self.name, message, "the provider does not extend the sandbox further");
                supervisor.final_end = Some(id.clone());
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        // Some providers accept and grant less.
        if self.attached().is_some_and(|attached| later(attached.ends_at, SLACK) < later(self.stable_now(), lifetime)) {
            supervisor.final_end = Some(id.clone());
        }
        Ok(())
    }

    /// Extends the sandbox to `lifetime` from now, and records what the provider granted.
    pub(super) async fn extend_to(
        &self,
        op: &OpGuard<'_>,
        sandbox: &Sandbox,
        place: &SandboxRef,
        lifetime: Duration,
    ) -> Result<(), WorkspaceError> {
        self.service(&place.provider).await?.set_timeout(&place.sandbox, lifetime).await?;
        self.reinspect(op).await?;
        let Some(attached) = self.attached() else { return Ok(()) };
        let until = later(self.now(), self.until(attached.ends_at));
        self.update(op, |_, details| {
            if let Some(run) = &mut details.run {
                run.ends_at = until;
            }
        })
        .await?;
        self.context.records.extend_interval(&place.provider, &place.sandbox, until).await?;
        info!(workspace = %self.name, sandbox = %place, %until, "extended");
        self.emit(EventKind::Extended { sandbox: sandbox.id().to_string(), until }).await;
        Ok(())
    }
}
