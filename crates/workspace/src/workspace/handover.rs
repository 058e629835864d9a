//! From one sandbox to the next: rotation, a change of provider, and a workspace that comes back from its snapshot.
//!
//! ```text
//! fence closed ── those inside leave ── snapshot ── [Moving] ── successor made ── noted ── files restored and verified
//!     ── services ── [Ready: the successor] ── old one ended ── fence open
//! ```
//! The record is written at every bracket and whenever a sandbox is made, before anything depends on it. Until the
//! successor is the workspace's sandbox the old one is not touched, and whatever fails is undone by ending the successor.
//! Only where the plan has no room for two does the old one go first, with its files in a snapshot that was seen to be
//! whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sdk::Sandbox;
use tokio::time::Instant;
use tracing::{info, warn};

use super::core::{Core, METADATA, SavedFor, Turn};
use super::details::{Handover, LastFiles, Place, Run};
use super::error::{Unavailable, WorkspaceError};
use super::mark::Mark;
use super::wake::BroughtBack;
use crate::chain::chain;
use crate::devserver::Start;
use crate::events::EventKind;
use crate::faults::{Point, reach};
use crate::label;
use crate::name::ProviderName;
use crate::provider::{ANSWER_TIME, CreateRequest, Placed, PlanReached};
use crate::records::WorkspaceState;
use crate::shell;
use crate::snapshot::{Restored, Stamp, Which};

/// A workspace that is about to end still gets a sandbox for this long.
const SHORTEST_LIFE: Duration = Duration::from_secs(60);

/// Who is to make the successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// This one, and if it cannot, another.
    First(ProviderName),
    Only(ProviderName),
}

impl From<ProviderName> for Target {
    fn from(name: ProviderName) -> Self {
        Self::First(name)
    }
}

/// Why there is a new sandbox, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Rotation,
    Move,
    Lost,
    /// The provider has the sandbox, and not its files.
    FilesMissing,
    Ended(LastFiles),
    Restore,
    /// The sandbox is the same, and lost what was written last. What it had is in this snapshot.
    LostWrites {
        aside: Stamp,
    },
}

/// What is to be done.
pub(super) struct Succession {
    pub(super) why: Why,
    pub(super) target: Target,
    pub(super) which: Which,
    /// Lives, and is ended when the successor has taken its place.
    pub(super) old: Option<Place>,
    /// Was just taken of the old one.
    pub(super) saved: Option<Stamp>,
    /// What runs in the old one, and will not in the new one.
    pub(super) running: Vec<String>,
}

/// A workspace is in a new sandbox.
#[derive(Debug, Clone)]
pub struct HandedOver {
    pub provider: ProviderName,
    pub sandbox: String,
    /// Whose files it has.
    pub restored: Restored,
    /// How long nobody could work.
    pub fenced: Duration,
    /// The files were a snapshot's already, since the sandbox before it was lost.
    pub brought_back: Option<Arc<BroughtBack>>,
    /// The sandbox before it could not be reached, and may have what is not here.
    pub left_behind: Option<LeftBehind>,
}

/// How a workspace may be moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MoveOptions {
    /// Go also when the sandbox cannot be reached: what was changed since the newest snapshot stays in it. It is not ended,
    /// and [`Workspace::attach`](super::Workspace::attach) comes back to it.
    pub leave_unsaved: bool,
}

/// A sandbox that was left because it could not be reached. It is not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftBehind {
    pub provider: ProviderName,
    pub sandbox: String,
    /// What was changed after this snapshot is in that sandbox only.
    pub since: Stamp,
}

impl Core {
    /// Replaces the sandbox by one with the same files.
    pub(super) async fn rotate(&self) -> Result<HandedOver, WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let provider = self.seat().record.provider.clone();
        self.hand_over_in_turn(&turn, Target::First(provider), Why::Rotation).await
    }

    /// Lets another provider take the workspace over.
    pub(super) async fn move_to(
        &self,
        provider: &ProviderName,
        options: MoveOptions,
    ) -> Result<HandedOver, WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let target = Target::Only(provider.clone());
        match self.hand_over_in_turn(&turn, target.clone(), Why::Move).await {
            Err(WorkspaceError::Unavailable(Unavailable::Unreachable { reason, .. })) => {
                self.move_from_snapshot(&turn, target, options, reason).await
            }
            other => other,
        }
    }

    pub(super) async fn hand_over_in_turn(
        &self,
        turn: &Turn<'_>,
        target: Target,
        why: Why,
    ) -> Result<HandedOver, WorkspaceError> {
        let (attached, brought_back) = self.awake(turn).await?;
        let from = self.seat().record.provider.clone();
        let closed = self.fence.close();
        let started = Instant::now();
        reach(Point::HandoverFenced).await;
        let inside = closed.emptied(self.settings().leave_wait).await;
        if inside > 0 {
            warn!(workspace = %self.name, inside, "some did not leave in time; what they do from now on is not kept");
        }
        let running = self.running(&attached.sandbox).await;
        let saved = match self.save(turn, &attached.sandbox, SavedFor::Handover).await {
            Ok(saved) => saved,
            Err(error) => {
                self.tell(EventKind::HandoverFailed { reason: self.hidden(&chain(&error)) }).await;
                return Err(error.into());
            }
        };
        reach(Point::HandoverSaved).await;
        let succession = Succession {
            why,
            target,
            which: Which::Exactly(saved.stamp),
            old: self.place(),
            saved: Some(saved.stamp),
            running,
        };
        let old = succession.old.as_ref().map(|place| place.sandbox.to_string());
        let result = self.succeed(turn, succession).await;
        let took = started.elapsed();
        drop(closed);
        match result {
            Ok((restored, _)) => {
                let (provider, sandbox) = self.whereabouts();
                let kind = if provider == from {
                    EventKind::Rotated { from: old, sandbox: sandbox.clone(), provider: provider.clone(), took }
                } else {
                    EventKind::Moved { from, to: provider.clone(), sandbox: sandbox.clone(), took }
                };
                self.tell(kind).await;
                info!(workspace = %self.name, %provider, sandbox, ?took, "in a new sandbox");
                Ok(HandedOver { provider, sandbox, restored, fenced: took, brought_back, left_behind: None })
            }
            Err(error) => {
                self.tell(EventKind::HandoverFailed { reason: self.hidden(&chain(&error)) }).await;
                Err(error)
            }
        }
    }

    /// To another provider without the one that it is with, which cannot be reached.
    async fn move_from_snapshot(
        &self,
        turn: &Turn<'_>,
        target: Target,
        options: MoveOptions,
        reason: String,
    ) -> Result<HandedOver, WorkspaceError> {
        let (from, started) = (self.seat().record.provider.clone(), Instant::now());
        let (old, running) = (self.place(), Vec::new());
        // One that was saved when it was paused has nothing that is not in that snapshot.
        let saved = self.seat().details.saved_at_pause;
        let which = match (options.leave_unsaved, saved, &old) {
            (true, ..) => Which::Newest,
            (false, Some(stamp), _) => Which::Exactly(stamp),
            (false, None, None) => Which::Newest,
            (false, None, Some(place)) => {
                let newest = self.house.snapshots.newest(&self.project).await?;
                return Err(WorkspaceError::Unsaved {
                    workspace: self.name.clone(),
                    sandbox: place.sandbox.clone(),
                    provider: place.provider.clone(),
                    since: newest,
                    reason,
                });
            }
        };
        self.within_budget().await?;
        let succession = Succession { why: Why::Restore, target, which, old: old.clone(), saved: None, running };
        let (restored, _) = self.succeed(turn, succession).await?;
        let left_behind = old.filter(|_| saved != Some(restored.stamp)).map(|Place { provider, sandbox }| LeftBehind {
            provider,
            sandbox: sandbox.to_string(),
            since: restored.stamp,
        });
        let ((provider, sandbox), fenced) = (self.whereabouts(), started.elapsed());
        self.tell(EventKind::Moved { from, to: provider.clone(), sandbox: sandbox.clone(), took: fenced }).await;
        Ok(HandedOver { provider, sandbox, restored, fenced, brought_back: None, left_behind })
    }

    pub(super) fn whereabouts(&self) -> (ProviderName, String) {
        let seat = self.seat();
        let sandbox = seat.record.sandbox.as_ref().map(ToString::to_string).unwrap_or_default();
        (seat.record.provider.clone(), sandbox)
    }

    /// What runs in a sandbox, for people: not what we run there ourselves.
    async fn running(&self, sandbox: &Sandbox) -> Vec<String> {
        match sandbox.within(ANSWER_TIME).commands().list().await {
            Ok(processes) => processes.iter().filter_map(label::told).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Makes a new sandbox with the files of a snapshot, and lets it take the workspace over. Nobody may be inside the
    /// fence, or their sandbox is gone.
    ///
    /// Returns what those who work there are told, too.
    pub(super) async fn succeed(
        &self,
        turn: &Turn<'_>,
        succession: Succession,
    ) -> Result<(Restored, String), WorkspaceError> {
        let Succession { why, target, which, old, saved, running } = succession;
        let handover = Handover { old: old.clone(), snapshot: saved, successor: None };
        self.update(turn, |record, details| {
            record.state = WorkspaceState::Moving;
            details.handover = Some(handover);
        })
        .await?;
        reach(Point::HandoverRecorded).await;
        let mut old = old;
        if let Some(place) = old.clone().filter(|_| saved.is_some())
            && self.has_no_room(&target, &place).await?
        {
            self.end_first(turn, &place).await?;
            old = None;
        }
        let made = self.make_successor(turn, target, which).await;
        let (placed, restored, mark) = match made {
            Ok(made) => made,
            Err(error) => {
                self.undo(turn).await;
                return Err(error);
            }
        };
        shell::sync_files(&placed.sandbox).await;
        let head = self.head(&placed.sandbox).await;
        let run = Run::of(&placed);
        let remaining = self.settings().clock.until(run.ends_at);
        let notice = self.describe_return(why, &restored, &running, old.as_ref());
        self.notice(&notice);
        self.unsaved.store(false, Ordering::Release);
        let left = old.clone().filter(|_| why == Why::Restore);
        self.update(turn, |record, details| {
            record.state = WorkspaceState::Ready;
            record.provider = placed.provider.clone();
            record.sandbox = Some(placed.sandbox.id().clone());
            record.paused = false;
            details.handover = None;
            details.stopped = None;
            details.run = Some(run);
            details.epoch += 1;
            details.head = head.or(details.head.take());
            details.mark = mark;
            details.unsaved = false;
            match why {
                // Its files may be found again.
                Why::Restore | Why::FilesMissing => details.left_behind.extend(old),
                Why::Rotation | Why::Move | Why::Lost | Why::Ended(_) | Why::LostWrites { .. } => {
                    details.retired.extend(old);
                }
            }
        })
        .await?;
        self.attach(placed.sandbox, remaining);
        reach(Point::HandoverSwapped).await;
        if let Some(Place { provider, sandbox }) = left {
            let (sandbox, since) = (sandbox.to_string(), restored.stamp);
            self.tell(EventKind::LeftBehind { provider, sandbox, since }).await;
        }
        self.end_retired(turn).await?;
        Ok((restored, notice))
    }

    /// Whether the plan lets no second sandbox run beside the old one.
    async fn has_no_room(&self, target: &Target, old: &Place) -> Result<bool, WorkspaceError> {
        let (Target::First(name) | Target::Only(name)) = target;
        if *name != old.provider {
            return Ok(false);
        }
        let room = self.house.orchestrator.room(name).await?;
        Ok(matches!(room, Err(PlanReached::Concurrency { .. })))
    }

    /// Ends the old sandbox before there is a new one. Its files are in a snapshot that was seen to be whole.
    async fn end_first(&self, turn: &Turn<'_>, old: &Place) -> Result<(), WorkspaceError> {
        info!(workspace = %self.name, sandbox = %old, "the plan has no room for two sandboxes: the old one goes first");
        if !self.end(old).await {
            self.undo(turn).await;
            let reason = "it could not be ended to make room for its successor".to_owned();
            return Err(Unavailable::Unreachable {
                workspace: self.name.clone(),
                id: old.sandbox.clone(),
                provider: old.provider.clone(),
                reason,
            }
            .into());
        }
        reach(Point::HandoverOldEndedFirst).await;
        self.detach();
        self.update(turn, |record, details| {
            record.sandbox = None;
            details.run = None;
            if let Some(handover) = &mut details.handover {
                handover.old = None;
            }
        })
        .await?;
        Ok(())
    }

    /// A sandbox with the files in it and the services running.
    async fn make_successor(
        &self,
        turn: &Turn<'_>,
        target: Target,
        which: Which,
    ) -> Result<(Placed, Restored, Option<Mark>), WorkspaceError> {
        let placed = self.place_sandbox(target).await?;
        reach(Point::HandoverMade).await;
        let place = Place { provider: placed.provider.clone(), sandbox: placed.sandbox.id().clone() };
        let noted = self.update(turn, |_, details| {
            if let Some(handover) = &mut details.handover {
                handover.successor = Some(place.clone());
            }
        });
        if let Err(error) = noted.await {
            self.end(&place).await;
            return Err(error.into());
        }
        reach(Point::HandoverNoted).await;
        let restored = self.house.snapshots.restore(&placed.sandbox, &self.project, which).await?;
        reach(Point::HandoverRestored).await;
        let ((), mark) = tokio::join!(
            self.start_services(&placed.sandbox, Start::AfterRestore),
            self.write_mark(&placed.sandbox, restored.stamp)
        );
        reach(Point::HandoverServed).await;
        Ok((placed, restored, mark))
    }

    pub(super) async fn place_sandbox(&self, target: Target) -> Result<Placed, WorkspaceError> {
        let (only, prefer) = match target {
            Target::Only(name) => (Some(name), None),
            Target::First(name) => (None, Some(name)),
        };
        Ok(self.house.orchestrator.create(&self.request(only, prefer)).await?)
    }

    pub(super) fn request(&self, only: Option<ProviderName>, prefer: Option<ProviderName>) -> CreateRequest {
        let payer = self.payer();
        let lifetime = self.ttl_left().max(SHORTEST_LIFE);
        let seat = self.seat();
        CreateRequest {
            template: seat.record.template.clone(),
            resources: seat.details.resources,
            env: seat.record.env.clone(),
            metadata: BTreeMap::from([(METADATA.to_owned(), self.name.to_string())]),
            lifetime,
            provider: only,
            prefer,
            payer,
        }
    }
}
