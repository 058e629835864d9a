//! The limits of a run, and how it ends.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use workspace::ledger::Usd;

use super::{End, Report, Run, RunError};
use crate::event::Event;
use crate::records::RunState;
use crate::stop::StopReason;
use crate::workplace::WorkplaceError;

/// For saving and pausing at the end.
const KEEPING: Duration = Duration::from_secs(600);
/// For the same when the run has been stopped.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

impl Run {
    /// A limit that is reached.
    pub(super) fn limits(&self) -> Option<End> {
        let settings = &self.plan.settings;
        if self.parts.cancel.is_cancelled() {
            return Some(End::cancelled());
        }
        if self.state.turns >= settings.max_turns {
            let message = format!("The limit of {} turns is reached.", settings.max_turns);
            return Some(End::new(StopReason::MaxTurns, message));
        }
        if let Some(most) = settings.max_tokens_total
            && self.state.usage.total() >= most
        {
            return Some(End::new(StopReason::MaxTokensTotal, format!("The limit of {most} tokens is reached.")));
        }
        if let Some(most) = settings.max_cost_usd
            && self.state.cost.dollars() >= most
        {
            let message = format!("The budget of ${most} is reached: {} are spent.", self.state.cost);
            return Some(End::new(StopReason::MaxCost, message));
        }
        self.time_is_up()
    }

    pub(super) fn time_is_up(&self) -> Option<End> {
        let up = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        up.then(|| End::new(StopReason::WallClock, "The time for this run is up."))
    }

    pub(super) async fn finish(mut self, reason: StopReason, mut message: String) -> Result<Report, RunError> {
        if reason.is_budget() {
            self.keep(&mut message).await?;
        }
        self.run_state = RunState::Finished;
        self.stop_reason = Some(reason);
        let cost = self.parts.model.price().map(|_| self.state.cost);
        let report = Report {
            run: self.id.clone(),
            stop_reason: reason,
            message: self.mask(&message),
            turns: self.state.turns,
            usage: self.state.usage,
            cost,
            text: self.mask(&self.state.last_text),
            files_changed: self.state.ledger.files_changed(),
            background_tasks: self.state.ledger.background_tasks(),
            conversation: std::mem::take(&mut self.state.messages),
        };
        let event = Event::RunFinished {
            stop_reason: reason,
            message: report.message.clone(),
            turns: report.turns,
            usage: report.usage,
            cost_usd: cost.map(Usd::dollars),
            text: report.text.clone(),
            files_changed: report.files_changed.clone(),
            background_tasks: report.background_tasks.clone(),
        };
        self.note(event, None);
        self.flush().await?;
        Ok(report)
    }

    /// At a limit nothing is lost and nothing goes on costing: saved, paused, said.
    async fn keep(&mut self, message: &mut String) -> Result<(), RunError> {
        self.flush().await?;
        let cancel = &self.parts.cancel;
        let saved = keeping("save the files", cancel, self.parts.workplace.save()).await;
        let paused = keeping("pause the sandbox", cancel, self.parts.workplace.pause()).await;
        let problem = |error: &WorkplaceError| format!("{error}: {}", error.source);
        message.push_str(match (&saved, &paused) {
            (Ok(_), Ok(())) => " The files are saved and the sandbox is paused.",
            (Ok(_), Err(_)) => " The files are saved, but the sandbox could not be paused.",
            (Err(_), _) => " The files could not be saved; they are in the sandbox.",
        });
        let (snapshot, trouble) = match saved {
            Ok(snapshot) => (snapshot, None),
            Err(error) => (None, Some(problem(&error))),
        };
        self.note(Event::Saved { snapshot, problem: trouble }, None);
        self.note(Event::Paused { problem: paused.err().as_ref().map(problem) }, None);
        Ok(())
    }
}

/// What of a run is waited for, but not without end, and not long after the run was stopped.
pub(super) async fn keeping<T>(
    what: &'static str,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, WorkplaceError>>,
) -> Result<T, WorkplaceError> {
    let stopped = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let given_up = |why: &str| Err(WorkplaceError { what, source: why.into() });
    tokio::select! {
        biased;
        done = timeout(KEEPING, work) => done.unwrap_or_else(|_| given_up("it took too long")),
        () = stopped => given_up("the run was stopped meanwhile"),
    }
}
