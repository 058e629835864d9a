//! Pause, the end of a workspace's time, and its destruction: files first, then the sandbox.

use std::time::Duration;

use futures::future::join_all;
use sdk::{Pause, PauseOutcome};
use tracing::{info, warn};

use super::core::{Core, SavedFor, Turn};
use super::details::{Details, Place, Stopped};
use super::error::{Unavailable, WorkspaceError};
use super::wake::Found;
use crate::chain::chain;
use crate::events::EventKind;
use crate::faults::{Point, reach};
use crate::ledger::Limit;
use crate::records::WorkspaceState;
use crate::snapshot::{SaveError, Saved, Stamp};

/// What to do with files that are in no snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsaved {
    /// Save them; leave the workspace as it is when they cannot be.
    Keep,
    /// Save them if that is possible; else they are lost.
    Discard,
    /// Nobody wants them.
    Unwanted,
}

/// How much is done for a snapshot before a pause, which keeps the files too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saving {
    /// As much as for any other.
    Patient,
    /// The sandbox's end is near.
    Within(Duration),
    /// It was tried.
    None,
}

impl Core {
    /// Stops the sandbox and keeps it. Pausing what is paused is a success.
    pub(super) async fn pause(&self) -> Result<(), WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        self.pause_in_turn(&turn, Saving::Patient).await
    }

    pub(super) async fn pause_in_turn(&self, turn: &Turn<'_>, saving: Saving) -> Result<(), WorkspaceError> {
        let (state, paused) = {
            let seat = self.seat();
            (seat.record.state, seat.record.paused)
        };
        match state {
            WorkspaceState::SettingUp => return Err(Unavailable::NotSetUp(self.name.clone()).into()),
            WorkspaceState::Moving => self.settle(turn).await?,
            // Without a sandbox there is nothing that costs.
            WorkspaceState::Stopped => return Ok(()),
            WorkspaceState::Ready => {}
        }
        let Some(place) = self.place() else { return Ok(()) };
        let closed = self.fence.close();
        reach(Point::PauseFenced).await;
        let sandbox = match self.look(&place).await? {
            Found::Running { sandbox, .. } => sandbox,
            Found::Paused { .. } if paused => return Ok(()),
            Found::Paused { .. } => return self.paused(turn, &place, None).await,
            Found::Gone => {
                self.gone(turn, &place).await?;
                return Err(WorkspaceError::Lost { workspace: self.name.clone(), sandbox: place.sandbox });
            }
        };
        closed.emptied(self.settings().leave_wait).await;
        // A pause keeps the files too, so that it is right also when they could not be saved.
        let saved = match saving {
            Saving::Patient => self.save(turn, &sandbox, SavedFor::Stop).await.ok(),
            Saving::Within(time) => {
                tokio::time::timeout(time, self.save(turn, &sandbox, SavedFor::Stop)).await.ok().and_then(Result::ok)
            }
            Saving::None => None,
        };
        let saved = saved.map(|saved| saved.stamp);
        reach(Point::PauseSaved).await;
        let outcome = sandbox.pause(Pause::with_memory()).await?;
        if outcome == PauseOutcome::AlreadyPaused {
            info!(workspace = %self.name, "it was paused already");
        }
        reach(Point::PausePaused).await;
        self.paused(turn, &place, saved).await
    }

    /// A limit is used up: the work is kept, and goes on when there is more.
    pub(super) async fn pause_for_budget(&self, turn: &Turn<'_>, limit: Limit) -> Result<(), WorkspaceError> {
        warn!(workspace = %self.name, "{limit} is used up: the work is saved and paused");
        self.tell(EventKind::LimitReached { limit }).await;
        self.pause_in_turn(turn, Saving::Patient).await
    }

    /// Notes that the sandbox is paused.
    pub(super) async fn paused(
        &self,
        turn: &Turn<'_>,
        place: &Place,
        saved: Option<Stamp>,
    ) -> Result<(), WorkspaceError> {
        self.detach();
        self.update(turn, |record, details| {
            record.paused = true;
            details.saved_at_pause = saved;
            details.run = None;
        })
        .await?;
        reach(Point::PauseNoted).await;
        self.close_interval(place).await;
        self.tell(EventKind::Paused { sandbox: place.sandbox.to_string() }).await;
        Ok(())
    }

    /// The workspace's own time is over: its files are saved and its sandbox ended. A restore brings it back.
    pub(super) async fn stop_in_turn(&self, turn: &Turn<'_>) -> Result<(), WorkspaceError> {
        let closed = self.fence.close();
        closed.emptied(self.settings().leave_wait).await;
        self.save_last(turn).await?;
        let place = self.place();
        self.detach();
        self.update(turn, |record, details| {
            record.state = WorkspaceState::Stopped;
            record.sandbox = None;
            record.paused = false;
            details.stopped = Some(Stopped::TimeOver);
            details.run = None;
            details.retired.extend(place);
        })
        .await?;
        self.end_retired(turn).await?;
        self.tell(EventKind::Stopped { reason: "its time is over".to_owned() }).await;
        Ok(())
    }

    /// Sees to it that a snapshot has the files, for somebody who is about to end the sandbox.
    pub(super) async fn keep_files(&self) -> Result<Option<Stamp>, WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let state = self.seat().record.state;
        match state {
            // What somebody asked for is not there yet, so that nothing of theirs can be lost.
            WorkspaceState::SettingUp | WorkspaceState::Stopped => return Ok(None),
            WorkspaceState::Moving => self.settle(&turn).await?,
            WorkspaceState::Ready => {}
        }
        let closed = self.fence.close();
        closed.emptied(self.settings().leave_wait).await;
        self.save_last(&turn).await
    }

    /// Saves the files before the sandbox goes, unless they are in a snapshot already. None when there are none.
    async fn save_last(&self, turn: &Turn<'_>) -> Result<Option<Stamp>, WorkspaceError> {
        let Some(place) = self.place() else { return Ok(None) };
        let saved = |result: Result<Saved, SaveError>| result.map(|saved| Some(saved.stamp)).map_err(Into::into);
        match self.look(&place).await? {
            Found::Gone => Ok(None),
            Found::Running { sandbox, .. } => saved(self.save(turn, &sandbox, SavedFor::Stop).await),
            Found::Paused { .. } => {
                if let Some(stamp) = self.seat().details.saved_at_pause {
                    return Ok(Some(stamp));
                }
                self.wake(turn).await?;
                let Some(attached) = self.attached() else { return Ok(None) };
                saved(self.save(turn, &attached.sandbox, SavedFor::Stop).await)
            }
        }
    }

    /// Saves the files, ends the sandbox and forgets the workspace. Its snapshots stay.
    pub(super) async fn destroy(&self, unsaved: Unsaved) -> Result<Option<Stamp>, WorkspaceError> {
        let turn = self.turn().await;
        self.check().await?;
        let state = self.seat().record.state;
        if state == WorkspaceState::Moving {
            self.settle(&turn).await?;
        }
        let closed = self.fence.close();
        closed.emptied(self.settings().leave_wait).await;
        let snapshot = match state {
            // What somebody asked for is not there yet, so that nothing of theirs can be lost.
            WorkspaceState::SettingUp => None,
            _ if unsaved == Unsaved::Unwanted => None,
            _ => match self.save_last(&turn).await {
                Ok(stamp) => stamp,
                Err(error) if unsaved == Unsaved::Keep => return Err(error),
                Err(error) => {
                    warn!(workspace = %self.name, error = %chain(&error), "destroyed without its last changes");
                    None
                }
            },
        };
        reach(Point::DestroySaved).await;
        let place = self.place();
        self.detach();
        self.update(&turn, |record, details| {
            record.state = WorkspaceState::Stopped;
            record.sandbox = None;
            record.paused = false;
            details.stopped = Some(Stopped::TimeOver);
            details.retired.extend(place);
        })
        .await?;
        self.end_retired(&turn).await?;
        reach(Point::DestroyEnded).await;
        self.end_left_behind().await;
        let still = self.seat().details.retired.first().cloned();
        if let (Some(place), Unsaved::Keep | Unsaved::Unwanted) = (still, unsaved) {
            // The record is the only one who knows of it.
            let reason = "it could not be ended; destroy the workspace again".to_owned();
            let Place { provider, sandbox: id } = place;
            return Err(Unavailable::Unreachable { workspace: self.name.clone(), id, provider, reason }.into());
        }
        self.remember().await;
        self.house.records.remove_workspace(&self.holding.lease()).await?;
        self.tell(EventKind::Destroyed { snapshot }).await;
        Ok(snapshot)
    }

    /// Tries to end the sandboxes that were left behind or lost, except those that another
    /// workspace has adopted. What cannot be ended is logged; a sweep takes it for an orphan once
    /// the record is gone.
    async fn end_left_behind(&self) {
        let places: Vec<Place> = {
            let Details { left_behind, lost, .. } = &self.seat().details;
            left_behind.iter().chain(lost).cloned().collect()
        };
        if places.is_empty() {
            return;
        }
        let others = match self.house.records.workspaces_and_unreadable().await {
            Ok((records, unreadable)) if unreadable.is_empty() => records,
            Ok((_, unreadable)) => {
                let unreadable = unreadable.join(", ");
                return warn!(workspace = %self.name, unreadable, "lost sandboxes are not ended: rows cannot be read");
            }
            Err(error) => {
                return warn!(workspace = %self.name, error = %chain(&error), "lost sandboxes are not ended");
            }
        };
        let is_adopted = |place: &&Place| {
            others.iter().any(|other| other.name != self.name && other.sandbox.as_ref() == Some(&place.sandbox))
        };
        join_all(places.iter().filter(|place| !is_adopted(place)).map(|place| self.end(place))).await;
    }
}
