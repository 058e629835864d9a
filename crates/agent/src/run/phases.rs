//! A run's phases: each is kept by itself before the next begins.

use super::ending::keeping;
use super::{End, LAST_TURN, Next, Run, RunError};
use crate::change::Change;
use crate::event::Event;
use crate::message::Message;
use crate::plan::Phase;
use crate::stop::StopReason;
use crate::workplace::Committed;

impl Run {
    /// Keeps a finished phase and begins the next; without one, the work is done.
    pub(super) async fn phase_done(&mut self) -> Result<Next, RunError> {
        let done = || Ok(Next::Stop(End::new(StopReason::Completed, "The model says that the work is done.")));
        let Some((index, phase)) = self.phase() else { return done() };
        self.flush().await?;
        let title = phase.goal.lines().next().unwrap_or_default().to_owned();
        let message = format!("Phase {}: {title}", index + 1);
        let (place, cancel) = (&self.parts.workplace, &self.parts.cancel);
        let kept = keeping("commit the phase", cancel, place.commit_phase(&message)).await;
        if kept.is_err() && self.parts.cancel.is_cancelled() {
            // Whoever goes on with the run keeps the phase.
            return Ok(Next::Stop(End::cancelled()));
        }
        let committed = kept.unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "a phase was not kept");
            Committed::default()
        });
        let Committed { commit, snapshot } = committed;
        let event = Event::PhaseFinished { phase: index + 1, commit, snapshot };
        self.note(event, Some(Change::PhasesDone { count: index + 1 }));
        let Some((index, phase)) = self.phase() else { return done() };
        let event = self.phase_started(index, &phase);
        let text = format!(
            "Phase {} is done and kept. Phase {} of {}: {}",
            index,
            index + 1,
            self.plan.phases.len(),
            phase.goal
        );
        self.idle = 0;
        self.note(event, Some(Change::Said { message: Message::user(text) }));
        Ok(Next::GoOn)
    }

    pub(super) fn phase(&self) -> Option<(u64, Phase)> {
        let index = self.state.phases_done;
        let phase = usize::try_from(index).ok().and_then(|index| self.plan.phases.get(index))?;
        Some((index, phase.clone()))
    }

    pub(super) fn phase_started(&self, index: u64, phase: &Phase) -> Event {
        Event::PhaseStarted { phase: index + 1, of: self.plan.phases.len() as u64, goal: self.mask(&phase.goal) }
    }

    /// The task as it was given, with the phase that is being worked on.
    pub(super) fn task(&self) -> String {
        let mut task = self.plan.goal.clone();
        if let Some((index, phase)) = self.phase() {
            task.push_str(&format!("\n\nPhase {} of {}: {}", index + 1, self.plan.phases.len(), phase.goal));
        }
        if self.plan.settings.max_turns == 1 {
            task.push_str(&format!("\n\n{LAST_TURN}"));
        }
        task
    }
}
