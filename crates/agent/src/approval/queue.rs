//! Approvals that are answered through the records: by this process or another, before or after a
//! crash.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::{ApprovalAnswer, Approver, Question};
use crate::event::Event;
use crate::records::{RunId, RunRecords, RunRecordsError};

/// Interval between two queries for an answer: people take longer, and a query reads one row by its
/// key.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Publishes the question as an event on the timeline, and polls the records for its answer.
/// Answers persist: the same question after a crash is answered at once.
#[derive(Clone)]
pub struct ApprovalQueue {
    records: Arc<dyn RunRecords>,
}

/// Result of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Recorded; the process that drives the run reads it within a second.
    Taken,
    /// The run has no such question.
    NoQuestion,
    /// The question was answered before.
    TooLate,
}

impl ApprovalQueue {
    pub fn new(records: Arc<dyn RunRecords>) -> Self {
        Self { records }
    }

    /// Answers the question about a call. The first answer counts.
    ///
    /// # Errors
    /// [`RunRecordsError`] if the records cannot be read or written.
    pub async fn reply(&self, run: &RunId, call: &str, answer: &ApprovalAnswer) -> Result<Reply, RunRecordsError> {
        let entries = self.records.entries_of_call(run, call).await?;
        let asked = entries.iter().any(|entry| matches!(entry.happened.event, Event::ApprovalAsked { .. }));
        if !asked {
            return Ok(Reply::NoQuestion);
        }
        // Settled without an answer: the run was stopped while the question was open.
        let settled = entries.iter().any(|entry| matches!(entry.happened.event, Event::ToolCallFinished { .. }));
        if settled || !self.records.record_answer(run, call, answer).await? {
            return Ok(Reply::TooLate);
        }
        Ok(Reply::Taken)
    }
}

#[async_trait]
impl Approver for ApprovalQueue {
    async fn ask(&self, question: Question) -> ApprovalAnswer {
        loop {
            match self.records.find_answer(&question.run, &question.id).await {
                Ok(Some(answer)) => return answer,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "approval answer could not be read; retrying"),
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
