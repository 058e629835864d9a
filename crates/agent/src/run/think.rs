//! Asks the model for a response, and retries while the provider is busy.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::{Instant, sleep_until};

use super::{End, Run, RunError};
use crate::event::Event;
use crate::model::{Delta, ModelError, Purpose, Request, Turn};
use crate::stop::StopReason;

/// Retries after the first attempt.
const MAX_RETRIES: u32 = 5;
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// A provider that demands a longer wait counts as unavailable.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

pub(super) enum Thought {
    Turn(Turn),
    /// The conversation must be compacted first.
    TooLong,
    Stop(End),
}

impl Run {
    pub(super) async fn think(&mut self) -> Result<Thought, RunError> {
        let mut attempt = 0;
        loop {
            let error = match self.attempt().await {
                Ok(turn) => {
                    self.full = false;
                    return Ok(Thought::Turn(turn));
                }
                Err(Broken::Stopped(end)) => return Ok(Thought::Stop(end)),
                Err(Broken::Model(error)) => error,
            };
            let (reason, asked) = match error {
                ModelError::TooLong(reason) if self.full => {
                    return Ok(Thought::Stop(End::new(StopReason::ContextExhausted, reason)));
                }
                ModelError::TooLong(_) => return Ok(Thought::TooLong),
                ModelError::Refused(reason) => return Ok(Thought::Stop(provider(&reason))),
                ModelError::Busy { message, retry_after } => (message, retry_after),
                ModelError::Interrupted(reason) => (reason, None),
            };
            attempt += 1;
            if attempt > MAX_RETRIES {
                return Ok(Thought::Stop(provider(&format!("{reason}; {MAX_RETRIES} more attempts did not help"))));
            }
            let wait = asked.unwrap_or_else(|| self.backoff(attempt));
            if wait > MAX_RETRY_AFTER {
                let text = format!("{reason}; it asks to wait {} s, which is too long", wait.as_secs());
                return Ok(Thought::Stop(provider(&text)));
            }
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let reason = self.mask(&reason);
            self.record(Event::Retry { attempt, wait_ms, reason }, None);
            self.flush().await?;
            if let Some(end) = self.wait_or_end(wait).await {
                return Ok(Thought::Stop(end));
            }
        }
    }

    async fn attempt(&self) -> Result<Turn, Broken> {
        let delta_sender = self.journal.delta_sender();
        let request = self.request(Purpose::Work);
        let tell = |delta: Delta<'_>| match delta {
            Delta::Text(text) => delta_sender.delta(|text| Event::TextDelta { text }, text),
            Delta::Thinking(text) => delta_sender.delta(|text| Event::ThinkingDelta { text }, text),
        };
        self.run_unless_over(self.parts.model.turn(request, &tell)).await
    }

    /// The next request to the model.
    pub(super) fn request(&self, purpose: Purpose) -> Request<'_> {
        Request {
            tools: &self.tools,
            system: &self.plan.system,
            messages: &self.state.messages,
            max_tokens: self.plan.settings.max_answer_tokens.min(self.parts.model.max_answer_tokens()),
            purpose,
        }
    }

    /// Waits for the model until the run is cancelled or its deadline passes.
    pub(super) async fn run_unless_over<T>(
        &self,
        work: impl Future<Output = Result<T, ModelError>>,
    ) -> Result<T, Broken> {
        tokio::select! {
            biased;
            () = self.parts.cancel.cancelled() => Err(Broken::Stopped(End::cancelled())),
            done = work => done.map_err(Broken::Model),
            end = self.wait_for_deadline() => Err(Broken::Stopped(end)),
        }
    }

    /// Waits; returns the reason if the run ends first.
    async fn wait_or_end(&self, wait: Duration) -> Option<End> {
        tokio::select! {
            () = tokio::time::sleep(wait) => None,
            () = self.parts.cancel.cancelled() => Some(End::cancelled()),
            end = self.wait_for_deadline() => Some(end),
        }
    }

    pub(super) async fn wait_for_deadline(&self) -> End {
        match self.deadline {
            Some(deadline) => sleep_until(deadline.max(Instant::now())).await,
            None => std::future::pending().await,
        }
        End::new(StopReason::WallClock, "The time for this run is up.")
    }

    /// Exponential backoff with jitter.
    fn backoff(&self, attempt: u32) -> Duration {
        let full = self.plan.settings.retry_wait.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(MAX_BACKOFF);
        full.mul_f64(rand::rng().random_range(0.5..=1.0))
    }
}

pub(super) enum Broken {
    Model(ModelError),
    Stopped(End),
}

fn provider(reason: &str) -> End {
    End::new(StopReason::ProviderError, format!("The model could not go on: {reason}."))
}
