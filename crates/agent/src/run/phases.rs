//! Phases of a run: each is committed before the next begins.

use super::finish::with_timeout;
use super::{End, LAST_TURN, Next, Run, RunError};
use crate::change::Change;
use crate::checkpoint::PhaseCheckpoint;
use crate::event::Event;
use crate::message::Message;
use crate::plan::PlanPhase;
use crate::stop::StopReason;

impl Run {
    /// Commits a finished phase and starts the next; after the last one, the run is complete.
    pub(super) async fn complete_phase(&mut self) -> Result<Next, RunError> {
        let done = || Ok(Next::Stop(End::new(StopReason::Completed, "The model says that the work is done.")));
        let Some((index, phase)) = self.current_phase() else { return done() };
        self.flush().await?;
        let title = phase.goal.lines().next().unwrap_or_default().to_owned();
        let message = format!("Phase {}: {title}", index + 1);
        let (place, cancel) = (&self.parts.checkpointer, &self.parts.cancel);
        let kept = with_timeout("commit the phase", cancel, place.commit_phase(&message)).await;
        if kept.is_err() && self.parts.cancel.is_cancelled() {
            // The process that resumes the run commits the phase.
            return Ok(Next::Stop(End::cancelled()));
        }
        let committed = kept.unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "a phase was not kept");
            PhaseCheckpoint::default()
        });
        let PhaseCheckpoint { commit, snapshot } = committed;
        let event = Event::PhaseFinished { phase: index + 1, commit, snapshot };
        self.record(event, Some(Change::PhasesDone { count: index + 1 }));
        let Some((index, phase)) = self.current_phase() else { return done() };
        let event = self.phase_started_event(index, &phase);
        let text = format!(
            "Phase {} is done and kept. Phase {} of {}: {}",
            index,
            index + 1,
            self.plan.phases.len(),
            phase.goal
        );
        self.idle = 0;
        self.record(event, Some(Change::UserMessage { message: Message::user(text) }));
        Ok(Next::GoOn)
    }

    pub(super) fn current_phase(&self) -> Option<(u64, PlanPhase)> {
        let index = self.state.phases_done;
        let phase = usize::try_from(index).ok().and_then(|index| self.plan.phases.get(index))?;
        Some((index, phase.clone()))
    }

    pub(super) fn phase_started_event(&self, index: u64, phase: &PlanPhase) -> Event {
        Event::PhaseStarted { phase: index + 1, of: self.plan.phases.len() as u64, goal: self.mask(&phase.goal) }
    }

    /// The task with the current phase.
    pub(super) fn task(&self) -> String {
        let mut task = self.plan.goal.clone();
        if let Some((index, phase)) = self.current_phase() {
            task.push_str(&format!("\n\nPhase {} of {}: {}", index + 1, self.plan.phases.len(), phase.goal));
        }
        if self.plan.settings.max_turns == 1 {
            task.push_str(&format!("\n\n{LAST_TURN}"));
        }
        task
    }
}
