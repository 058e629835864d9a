//! Hands a workspace over from one sandbox to the next: rotation, a change of provider, and a
//! restore from a checkpoint.
//!
//! ```text
//! gate closed ── operations leave ── checkpoint ── [Moving] ── successor created ── recorded
//!     ── files restored and verified ── services ── [Ready: the successor] ── old one killed
//!     ── gate open
//! ```
//! The record is written at every bracket and whenever a sandbox is created, before anything
//! depends on it. Until the successor is the workspace's sandbox the old one is not touched, and a
//! failure is rolled back by killing the successor. Only where the plan does not allow two
//! sandboxes is the old one killed first, with its files in a verified checkpoint.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::core::{METADATA, OpGuard, SavedFor, WORKSPACE_ID, WorkspaceCore};
use super::details::{LastFiles, Run, SandboxRef};
use super::error::{Unavailable, WorkspaceError};
use super::mark::Mark;
use super::resume::AutoRestore;
use super::transitions::{self, OldSandbox, Successor};
use crate::devserver::Start;
use crate::events::EventKind;
use crate::faults::{WorkspacePoint, reach};
use crate::name::ProviderName;
use crate::provider::{CreateRequest, Placed, PlanReached};
use checkpoint::{Restored, Stamp, Which};
use text::error_chain;

/// The minimum lifetime of a new sandbox, also of a workspace that is about to end.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);

/// Which provider creates the successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// This one, with others as fallback.
    First(ProviderName),
    Only(ProviderName),
}

impl From<ProviderName> for Target {
    fn from(name: ProviderName) -> Self {
        Self::First(name)
    }
}

/// Why there is a new sandbox; selects the notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Rotation,
    Move,
    Lost,
    /// The provider has the sandbox, but not its files.
    FilesMissing,
    Ended(LastFiles),
    Restore,
    /// The sandbox is the same, and lost its last writes. The checkpoint `aside` has what it still
    /// had.
    LostWrites {
        aside: Stamp,
    },
}

/// The plan of a handover.
pub(super) struct HandoverPlan {
    pub(super) why: Why,
    pub(super) target: Target,
    pub(super) which: Which,
    /// Still runs, and is killed when the successor has replaced it.
    pub(super) old: Option<SandboxRef>,
    /// The checkpoint just taken of it.
    pub(super) saved: Option<Stamp>,
    /// The processes that run in the old sandbox and will not in the new one.
    pub(super) running: Vec<String>,
}

/// A completed handover to a new sandbox.
#[derive(Debug, Clone)]
pub struct HandedOver {
    pub provider: ProviderName,
    pub sandbox: String,
    /// The restored checkpoint.
    pub restored: Restored,
    /// How long the sandbox gate was closed.
    pub gate_closed: Duration,
    /// Set if the previous sandbox was lost and the files were already restored from a checkpoint.
    pub auto_restore: Option<Arc<AutoRestore>>,
    /// The previous sandbox, if it could not be reached; it may have newer files.
    pub left_behind: Option<LeftBehind>,
}

/// Options of a move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveOptions {
    /// Move even when the sandbox cannot be reached: changes since the newest checkpoint stay in
    /// it. It is not killed, and [`Workspace::attach`](super::Workspace::attach) returns to it.
    pub leave_unsaved: bool,
}

/// A sandbox that was left because it could not be reached. It is not killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBehind {
    pub provider: ProviderName,
    pub sandbox: String,
    /// Changes after this checkpoint are only in that sandbox.
    pub since: Stamp,
}

impl WorkspaceCore {
    /// Replaces the sandbox by one with the same files.
    pub(super) async fn rotate(&self) -> Result<HandedOver, WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let provider = self.state().record.provider.clone();
        self.hand_over_locked(&op, Target::First(provider), Why::Rotation).await
    }

    /// Moves the workspace to another provider.
    pub(super) async fn move_to(
        &self,
        provider: &ProviderName,
        options: MoveOptions,
    ) -> Result<HandedOver, WorkspaceError> {
        let op = self.begin_op().await;
        self.check().await?;
        let target = Target::Only(provider.clone());
        match self.hand_over_locked(&op, target.clone(), Why::Move).await {
            Err(WorkspaceError::Unavailable(Unavailable::Unreachable { reason, .. })) => {
                self.move_from_checkpoint(&op, target, options, reason).await
            }
            other => other,
        }
    }

    pub(super) async fn hand_over_locked(
        &self,
        op: &OpGuard<'_>,
        target: Target,
        why: Why,
    ) -> Result<HandedOver, WorkspaceError> {
        let (attached, auto_restore) = self.ensure_running(op).await?;
        let from = self.state().record.provider.clone();
        let closed = self.gate.close();
        let started = Instant::now();
        reach(WorkspacePoint::HandoverGateClosed).await;
        let inside = closed.drain(self.settings().drain_timeout).await;
        if inside > 0 {
            warn!(workspace = %self.name, inside, "operations did not leave in time; their further changes are lost");
        }
        let running = self.context.upkeep.list_processes(&attached.sandbox).await;
        let saved = match self.save(op, &attached.sandbox, SavedFor::Handover).await {
            Ok(saved) => saved,
            Err(error) => {
                self.emit(EventKind::HandoverFailed { reason: self.mask_text(&error_chain(&error)) }).await;
                return Err(error.into());
            }
        };
        reach(WorkspacePoint::HandoverSaved).await;
        let plan = HandoverPlan {
            why,
            target,
            which: Which::Exactly(saved.stamp),
            old: self.current_sandbox(),
            saved: Some(saved.stamp),
            running,
        };
        let old = plan.old.as_ref().map(|place| place.sandbox.to_string());
        let result = self.execute_handover(op, plan).await;
        let took = started.elapsed();
        drop(closed);
        match result {
            Ok((restored, _)) => {
                let (provider, sandbox) = self.location();
                let kind = if provider == from {
                    EventKind::Rotated { from: old, sandbox: sandbox.clone(), provider: provider.clone(), took }
                } else {
                    EventKind::Moved { from, to: provider.clone(), sandbox: sandbox.clone(), took }
                };
                self.emit(kind).await;
                info!(workspace = %self.name, %provider, sandbox, ?took, "handed over to a new sandbox");
                Ok(HandedOver { provider, sandbox, restored, gate_closed: took, auto_restore, left_behind: None })
            }
            Err(error) => {
                self.emit(EventKind::HandoverFailed { reason: self.mask_text(&error_chain(&error)) }).await;
                Err(error)
            }
        }
    }

    /// Moves to another provider without the current one, which cannot be reached.
    async fn move_from_checkpoint(
        &self,
        op: &OpGuard<'_>,
        target: Target,
        options: MoveOptions,
        reason: String,
    ) -> Result<HandedOver, WorkspaceError> {
        let (from, started) = (self.state().record.provider.clone(), Instant::now());
        let (old, running) = (self.current_sandbox(), Vec::new());
        // A sandbox that was saved when it was paused has no newer changes.
        let saved = self.state().details.saved_at_pause;
        let which = match (options.leave_unsaved, saved, &old) {
            (true, ..) => Which::Newest,
            (false, Some(stamp), _) => Which::Exactly(stamp),
            (false, None, None) => Which::Newest,
            (false, None, Some(place)) => {
                let newest = self.context.store.newest(&self.project).await?;
                return Err(WorkspaceError::Unsaved {
                    workspace: self.name.clone(),
                    sandbox: place.sandbox.clone(),
                    provider: place.provider.clone(),
                    since: newest,
                    reason,
                });
            }
        };
        self.check_budget().await?;
        let plan = HandoverPlan { why: Why::Restore, target, which, old: old.clone(), saved: None, running };
        let (restored, _) = self.execute_handover(op, plan).await?;
        let left_behind = old.filter(|_| saved != Some(restored.stamp)).map(|SandboxRef { provider, sandbox }| {
            LeftBehind { provider, sandbox: sandbox.to_string(), since: restored.stamp }
        });
        let ((provider, sandbox), gate_closed) = (self.location(), started.elapsed());
        self.emit(EventKind::Moved { from, to: provider.clone(), sandbox: sandbox.clone(), took: gate_closed }).await;
        Ok(HandedOver { provider, sandbox, restored, gate_closed, auto_restore: None, left_behind })
    }

    pub(super) fn location(&self) -> (ProviderName, String) {
        let state = self.state();
        let sandbox = state.record.sandbox.as_ref().map(ToString::to_string).unwrap_or_default();
        (state.record.provider.clone(), sandbox)
    }

    /// Creates a new sandbox with the files of a checkpoint, and makes it the workspace's sandbox.
    /// No operation may be inside the gate, unless its sandbox is gone.
    ///
    /// Also returns the notice for sessions.
    pub(super) async fn execute_handover(
        &self,
        op: &OpGuard<'_>,
        plan: HandoverPlan,
    ) -> Result<(Restored, String), WorkspaceError> {
        let HandoverPlan { why, target, which, old, saved, running } = plan;
        self.update(op, |record, details| transitions::begin(record, details, old.clone(), saved)).await?;
        reach(WorkspacePoint::HandoverRecorded).await;
        let mut old = old;
        if let Some(place) = old.clone().filter(|_| saved.is_some())
            && self.lacks_capacity(&target, &place).await?
        {
            self.kill_old_first(op, &place).await?;
            old = None;
        }
        let made = self.make_successor(op, target, which).await;
        let (placed, restored, mark) = match made {
            Ok(made) => made,
            Err(error) => {
                self.roll_back(op).await;
                return Err(error);
            }
        };
        self.context.upkeep.sync_files(&placed.sandbox).await;
        let head = self.head(&placed.sandbox).await;
        let run = Run::from_placed(&placed);
        let remaining = self.settings().clock.until(run.ends_at);
        let notice = self.describe_handover(why, &restored, &running, old.as_ref());
        self.add_notice(&notice);
        self.unsaved.store(false, Ordering::Release);
        let left = old.clone().filter(|_| why == Why::Restore);
        let strays_due = self.strays_due();
        let becomes = match why {
            // Its files may become available again.
            Why::Restore | Why::FilesMissing => OldSandbox::LeftBehind,
            Why::Rotation | Why::Move | Why::Lost | Why::Ended(_) | Why::LostWrites { .. } => OldSandbox::Retired,
        };
        let place = SandboxRef { provider: placed.provider.clone(), sandbox: placed.sandbox.id().clone() };
        let successor = Successor { place, run: Some(run), head, mark };
        self.update(op, |record, details| {
            transitions::swap(record, details, successor, (old, becomes), strays_due);
        })
        .await?;
        self.attach(placed.sandbox, remaining);
        reach(WorkspacePoint::HandoverSwapped).await;
        if let Some(SandboxRef { provider, sandbox }) = left {
            let (sandbox, since) = (sandbox.to_string(), restored.stamp);
            self.emit(EventKind::LeftBehind { provider, sandbox, since }).await;
        }
        self.kill_retired(op).await?;
        Ok((restored, notice))
    }

    /// Whether the plan does not allow a second sandbox next to the old one.
    async fn lacks_capacity(&self, target: &Target, old: &SandboxRef) -> Result<bool, WorkspaceError> {
        let (Target::First(name) | Target::Only(name)) = target;
        if *name != old.provider {
            return Ok(false);
        }
        let checked = self.context.orchestrator.check_plan(name).await?;
        Ok(matches!(checked, Err(PlanReached::Concurrency { .. })))
    }

    /// Kills the old sandbox before there is a new one. Its files are in a verified checkpoint.
    async fn kill_old_first(&self, op: &OpGuard<'_>, old: &SandboxRef) -> Result<(), WorkspaceError> {
        info!(workspace = %self.name, sandbox = %old, "the plan does not allow two sandboxes: killing the old one first");
        // Another process may have taken the workspace back to it.
        self.check().await?;
        if !self.kill_sandbox(old).await {
            self.roll_back(op).await;
            let reason = "it could not be ended to make room for its successor".to_owned();
            return Err(Unavailable::Unreachable {
                workspace: self.name.clone(),
                id: old.sandbox.clone(),
                provider: old.provider.clone(),
                reason,
            }
            .into());
        }
        reach(WorkspacePoint::HandoverOldEndedFirst).await;
        self.detach();
        Ok(self.update(op, transitions::end_old).await?)
    }

    /// Creates a sandbox with the files restored and the services running.
    async fn make_successor(
        &self,
        op: &OpGuard<'_>,
        target: Target,
        which: Which,
    ) -> Result<(Placed, Restored, Option<Mark>), WorkspaceError> {
        let placed = self.place_sandbox(target).await?;
        reach(WorkspacePoint::HandoverMade).await;
        let place = SandboxRef { provider: placed.provider.clone(), sandbox: placed.sandbox.id().clone() };
        let noted = self.update(op, |_, details| transitions::note_successor(details, place.clone()));
        if let Err(error) = noted.await {
            self.kill_sandbox(&place).await;
            return Err(error.into());
        }
        reach(WorkspacePoint::HandoverNoted).await;
        let services = async {
            reach(WorkspacePoint::HandoverRestored).await;
            self.start_services(&placed.sandbox, Start::AfterRestore).await;
        };
        let (restored, mark) = Box::pin(self.restore_and_mark(&placed.sandbox, which, services)).await?;
        reach(WorkspacePoint::HandoverServed).await;
        Ok((placed, restored, mark))
    }

    pub(super) async fn place_sandbox(&self, target: Target) -> Result<Placed, WorkspaceError> {
        let (only, prefer) = match target {
            Target::Only(name) => (Some(name), None),
            Target::First(name) => (None, Some(name)),
        };
        Ok(self.context.orchestrator.create(&self.request(only, prefer)).await?)
    }

    pub(super) fn request(&self, only: Option<ProviderName>, prefer: Option<ProviderName>) -> CreateRequest {
        let payer = self.payer();
        let lifetime = self.ttl_left().max(SHORTEST_LIFE);
        let state = self.state();
        let id = state.details.id.map(|id| (WORKSPACE_ID.to_owned(), id.to_string()));
        let metadata = id.into_iter().chain([(METADATA.to_owned(), self.name.to_string())]).collect();
        CreateRequest {
            template: state.record.template.clone(),
            resources: state.details.resources,
            env: state.record.env.clone(),
            metadata,
            lifetime,
            provider: only,
            prefer,
            payer,
        }
    }
}
