//! Questions that are answered through the records: by this process or another, before or after a crash.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::{Answer, Approver, Question};
use crate::event::Event;
use crate::records::{RunId, RunRecords, RunRecordsError};

/// How often an answer is looked for: people take longer, and a look is one row by its key.
const LOOK: Duration = Duration::from_millis(300);

/// Asks on the timeline, where the question stands as an event, and finds the answer in the records. An answer is kept: who asks
/// the same again, after a crash, has it at once.
#[derive(Clone)]
pub struct Desk {
    records: Arc<dyn RunRecords>,
}

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Whoever drives the run finds it within a second.
    Taken,
    /// No such question was asked in this run.
    NoQuestion,
    /// Somebody answered before.
    TooLate,
}

impl Desk {
    pub fn new(records: Arc<dyn RunRecords>) -> Self {
        Self { records }
    }

    /// Answers the question about a call. The first answer counts.
    ///
    /// # Errors
    /// The records cannot be read or written.
    pub async fn reply(&self, run: &RunId, call: &str, answer: &Answer) -> Result<Reply, RunRecordsError> {
        let told = self.records.of_call(run, call).await?;
        let asked = told.iter().any(|entry| matches!(entry.happened.event, Event::ApprovalAsked { .. }));
        if !asked {
            return Ok(Reply::NoQuestion);
        }
        // Settled without an answer: the run was stopped while the question was open.
        let settled = told.iter().any(|entry| matches!(entry.happened.event, Event::ToolCallFinished { .. }));
        if settled || !self.records.answer(run, call, answer).await? {
            return Ok(Reply::TooLate);
        }
        Ok(Reply::Taken)
    }
}

#[async_trait]
impl Approver for Desk {
    async fn ask(&self, question: Question) -> Answer {
        loop {
            match self.records.answered(&question.run, &question.id).await {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "an answer cannot be looked for; trying again"),
            }
            sleep(LOOK).await;
        }
    }
}
