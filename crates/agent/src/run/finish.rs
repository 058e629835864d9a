//! Limits of a run, and its end.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use workspace::ledger::Usd;

use super::{End, Report, Run, RunError};
use crate::checkpoint::CheckpointError;
use crate::event::Event;
use crate::records::RunState;
use crate::stop::StopReason;

/// Timeout for saving and pausing at the end.
const SAVE_TIMEOUT: Duration = Duration::from_secs(600);
/// The same for a run that was cancelled.
const CANCEL_GRACE: Duration = Duration::from_millis(500);

impl Run {
    /// A limit that has been reached.
    pub(super) fn check_limits(&self) -> Option<End> {
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
        self.check_deadline()
    }

    pub(super) fn check_deadline(&self) -> Option<End> {
        let up = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        up.then(|| End::new(StopReason::WallClock, "The time for this run is up."))
    }

    pub(super) async fn finish(mut self, reason: StopReason, mut message: String) -> Result<Report, RunError> {
        if reason.is_budget() {
            self.save_and_pause(&mut message).await?;
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
            files_changed: self.state.work_summary.files_changed(),
            background_tasks: self.state.work_summary.background_tasks(),
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
        self.record(event, None);
        self.flush().await?;
        Ok(report)
    }

    /// At a limit, saves the files and pauses the sandbox, so that nothing is lost and costs stop.
    async fn save_and_pause(&mut self, message: &mut String) -> Result<(), RunError> {
        self.flush().await?;
        let cancel = &self.parts.cancel;
        let saved = with_timeout("save the files", cancel, self.parts.checkpointer.save()).await;
        let paused = with_timeout("pause the sandbox", cancel, self.parts.checkpointer.pause()).await;
        let problem = |error: &CheckpointError| format!("{error}: {}", error.source);
        message.push_str(match (&saved, &paused) {
            (Ok(_), Ok(())) => " The files are saved and the sandbox is paused.",
            (Ok(_), Err(_)) => " The files are saved, but the sandbox could not be paused.",
            (Err(_), _) => " The files could not be saved; they are in the sandbox.",
        });
        let (snapshot, trouble) = match saved {
            Ok(snapshot) => (snapshot, None),
            Err(error) => (None, Some(problem(&error))),
        };
        self.record(Event::Saved { snapshot, problem: trouble }, None);
        self.record(Event::Paused { problem: paused.err().as_ref().map(problem) }, None);
        Ok(())
    }
}

/// Bounds work by a timeout, and by a shorter one once the run is cancelled.
pub(super) async fn with_timeout<T>(
    what: &'static str,
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, CheckpointError>>,
) -> Result<T, CheckpointError> {
    let stopped = async {
        cancel.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    let given_up = |why: &str| Err(CheckpointError { what, source: why.into() });
    tokio::select! {
        biased;
        done = timeout(SAVE_TIMEOUT, work) => done.unwrap_or_else(|_| given_up("it took too long")),
        () = stopped => given_up("the run was stopped meanwhile"),
    }
}
