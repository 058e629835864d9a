//! Keeping without staying: somebody who looks after many workspaces comes when something is due, does it, and goes.

use std::time::Duration;

use jiff::Timestamp;

use super::decision::{Due, Facts, due, stop_at};
use super::{Core, Keeping, unsaved_due};
use crate::clock::later;
use crate::house::House;
use crate::records::{WorkspaceRecord, WorkspaceState};
use crate::workspace::details::Details;
use crate::workspace::error::WorkspaceError;

/// Far more than there are things to be done one after the other.
const ROUNDS: usize = 16;

impl Core {
    /// Does all that is due, and says when something is again. What failed is what is told, once nothing more can be done
    /// about it: after a rotation that failed, a pause may be due.
    pub(crate) async fn attend(&self) -> (Duration, Result<(), WorkspaceError>) {
        let settings = self.settings();
        let mut keeping = Keeping::begin(self.stable_now(), Duration::ZERO, settings);
        let mut done = Ok(());
        for _ in 0..ROUNDS {
            match self.tend(&mut keeping).await {
                Ok(next) if next > self.stable_now() => return (self.until(next), done),
                Ok(_) => {}
                // The second trouble in a row is one that does not pass by itself.
                Err(error) if done.is_err() => return (settings.rotate_again, Err(error)),
                Err(error) => done = Err(error),
            }
        }
        (settings.rotate_again, done)
    }
}

/// In how long a workspace that no process has needs attention, as far as its record tells: its
/// sandbox is not asked about before. None while nothing can become due. Its times were written by
/// the wall clock, which may have been set since: the earlier of two answers counts, that of the
/// wall clock and that of a clock that does not jump.
pub(crate) fn needs_attention(house: &House, record: &WorkspaceRecord, details: &Details) -> Option<Duration> {
    let in_how_long = |now: Timestamp| {
        let due = needs_attention_at(now, house, record, details)?;
        Some(Duration::try_from(due.duration_since(now)).unwrap_or_default())
    };
    let clocks = [house.settings.clock.now(), house.stable_now()];
    clocks.into_iter().filter_map(in_how_long).min()
}

fn needs_attention_at(now: Timestamp, house: &House, record: &WorkspaceRecord, details: &Details) -> Option<Timestamp> {
    let settings = &house.settings;
    if !details.retired.is_empty() {
        return Some(now);
    }
    match record.state {
        WorkspaceState::SettingUp | WorkspaceState::Stopped => None,
        WorkspaceState::Moving => Some(now),
        WorkspaceState::Ready if record.paused => {
            let saved = details.saved_at_pause.is_some();
            saved.then(|| stop_at(record.created_at, record.expires_at, settings))
        }
        WorkspaceState::Ready => {
            let Some(run) = details.run else { return Some(now) };
            let just_made = now < later(record.created_at, settings.first_snapshot_for);
            if !details.saved && just_made {
                return Some(now);
            }
            let provider = house.orchestrator.provider(&record.provider).ok()?;
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
