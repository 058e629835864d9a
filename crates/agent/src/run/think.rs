//! The model's part of a turn, with patience for providers that are busy.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::{Instant, sleep_until};

use super::{End, Run, RunError};
use crate::event::Event;
use crate::model::{Delta, ModelError, Purpose, Request, Turn};
use crate::stop::StopReason;

/// Attempts after the first.
const MOST_RETRIES: u32 = 5;
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A provider that wants more patience than this is not there.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

pub(super) enum Thought {
    Turn(Turn),
    /// The conversation must become shorter first.
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
            if attempt > MOST_RETRIES {
                return Ok(Thought::Stop(provider(&format!("{reason}; {MOST_RETRIES} more attempts did not help"))));
            }
            let wait = asked.unwrap_or_else(|| self.backoff(attempt));
            if wait > MOST_PATIENCE {
                let text = format!("{reason}; it asks to wait {} s, which is too long", wait.as_secs());
                return Ok(Thought::Stop(provider(&text)));
            }
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let reason = self.mask(&reason);
            self.note(Event::Retry { attempt, wait_ms, reason }, None);
            self.flush().await?;
            if let Some(end) = self.pause_for(wait).await {
                return Ok(Thought::Stop(end));
            }
        }
    }

    async fn attempt(&self) -> Result<Turn, Broken> {
        let teller = self.journal.teller();
        let request = self.request(Purpose::Work);
        let tell = |delta: Delta<'_>| match delta {
            Delta::Text(text) => teller.delta(|text| Event::TextDelta { text }, text),
            Delta::Thinking(text) => teller.delta(|text| Event::ThinkingDelta { text }, text),
        };
        self.unless_over(self.parts.model.turn(request, &tell)).await
    }

    /// What the model is asked next.
    pub(super) fn request(&self, purpose: Purpose) -> Request<'_> {
        Request {
            tools: &self.tools,
            system: &self.plan.system,
            messages: &self.state.messages,
            max_tokens: self.plan.settings.max_answer_tokens.min(self.parts.model.longest_answer()),
            purpose,
        }
    }

    /// Waits for the model unless the run is stopped or out of time before.
    pub(super) async fn unless_over<T>(&self, work: impl Future<Output = Result<T, ModelError>>) -> Result<T, Broken> {
        tokio::select! {
            biased;
            () = self.parts.cancel.cancelled() => Err(Broken::Stopped(End::cancelled())),
            done = work => done.map_err(Broken::Model),
            end = self.out_of_time() => Err(Broken::Stopped(end)),
        }
    }

    /// Waits; the reason when the run is over before that.
    async fn pause_for(&self, wait: Duration) -> Option<End> {
        tokio::select! {
            () = tokio::time::sleep(wait) => None,
            () = self.parts.cancel.cancelled() => Some(End::cancelled()),
            end = self.out_of_time() => Some(end),
        }
    }

    pub(super) async fn out_of_time(&self) -> End {
        match self.deadline {
            Some(deadline) => sleep_until(deadline.max(Instant::now())).await,
            None => std::future::pending().await,
        }
        End::new(StopReason::WallClock, "The time for this run is up.")
    }

    /// Twice as long each time, and not the same for all who wait.
    fn backoff(&self, attempt: u32) -> Duration {
        let full = self.plan.settings.retry_wait.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(LONGEST_WAIT);
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
