//! Maintenance of a workspace that no process has open: the caller opens it when something is due,
//! does it, and closes it.

use std::time::Duration;

use jiff::Timestamp;

use super::decision::{Due, Facts, due, stop_at};
use super::{SupervisorState, WorkspaceCore, unsaved_due};
use crate::clock::later;
use crate::context::WorkspaceContext;
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::workspace::details::Details;
use crate::workspace::error::WorkspaceError;

/// Far more than there are consecutive actions.
const ROUNDS: usize = 16;

impl WorkspaceCore {
    /// Does all that is due, and returns when the next action is. An error is returned once nothing
    /// more can be done about it: after a failed rotation, a pause may be due.
    pub(crate) async fn maintain(&self) -> (Duration, Result<(), WorkspaceError>) {
        let settings = self.settings();
        let mut supervisor = SupervisorState::begin(self.stable_now(), Duration::ZERO, settings);
        let mut done = Ok(());
        for _ in 0..ROUNDS {
            match self.maintain_once(&mut supervisor).await {
                Ok(next) if next > self.stable_now() => return (self.until(next), done),
                Ok(_) => {}
                // A second error in a row does not resolve itself.
                Err(error) if done.is_err() => return (settings.rotate_backoff, Err(error)),
                Err(error) => done = Err(error),
            }
        }
        (settings.rotate_backoff, done)
    }
}

/// How long until a workspace that no process holds needs maintenance, judged by its record: the
/// sandbox is not inspected before. [`None`] while nothing can become due. The recorded times are
/// of the wall clock, which may have been set since: the earlier of two answers counts, that of the
/// wall clock and that of a clock that does not jump.
pub(crate) fn maintenance_due(
    context: &WorkspaceContext,
    record: &WorkspaceRecord,
    details: &Details,
) -> Option<Duration> {
    let in_how_long = |now: Timestamp| {
        let due = maintenance_due_at(now, context, record, details)?;
        Some(Duration::try_from(due.duration_since(now)).unwrap_or_default())
    };
    let clocks = [context.settings.clock.now(), context.stable_now()];
    clocks.into_iter().filter_map(in_how_long).min()
}

fn maintenance_due_at(
    now: Timestamp,
    context: &WorkspaceContext,
    record: &WorkspaceRecord,
    details: &Details,
) -> Option<Timestamp> {
    if !details.retired.is_empty() {
        return Some(now);
    }
    let own = own_due_at(now, context, record, details);
    own.into_iter().chain(details.strays_due).min()
}

/// Like [`maintenance_due_at`], for the workspace's own sandbox.
fn own_due_at(
    now: Timestamp,
    context: &WorkspaceContext,
    record: &WorkspaceRecord,
    details: &Details,
) -> Option<Timestamp> {
    let settings = &context.settings;
    match record.state {
        WorkspaceState::SettingUp | WorkspaceState::Stopped => None,
        WorkspaceState::Moving => Some(now),
        WorkspaceState::Ready if record.paused => {
            let saved = details.saved_at_pause.is_some();
            saved.then(|| stop_at(record.created_at, record.expires_at, settings))
        }
        WorkspaceState::Ready => {
            let Some(run) = details.run else { return Some(now) };
            let just_made = now < later(record.created_at, settings.first_checkpoint_for);
            if !details.saved && just_made {
                return Some(now);
            }
            let provider = context.orchestrator.provider(&record.provider).ok()?;
            let facts = Facts {
                now,
                wall: now,
                started_at: run.started_at,
                ends_at: run.ends_at,
                seen_at: Timestamp::MAX,
                latest: provider.plan().longest_lifetime.map(|longest| later(run.started_at, longest)),
                created_at: record.created_at,
                expires_at: record.expires_at,
                failed_at: None,
            };
            let unsaved = details.unsaved && !settings.save_interval.is_zero();
            let save_at = unsaved.then(|| unsaved_due(record, details, settings));
            match due(&facts, settings) {
                Due::Wait(until) => Some(save_at.map_or(until, |at| at.min(until))),
                _ => Some(now),
            }
        }
    }
}
