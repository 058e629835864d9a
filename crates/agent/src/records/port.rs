//! Port to the persistent records of runs. Every implementation passes the contract in
//! `tests/agent`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::approval::ApprovalAnswer;
use crate::change::Change;
use crate::event::Happened;
use crate::model::Usage;
use crate::plan::Plan;
use crate::stop::StopReason;

/// Identifies a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    /// Generates a new id.
    #[expect(clippy::new_without_default, reason = "no two are the same")]
    pub fn new() -> Self {
        Self(format!("run_{:016x}", rand::random::<u64>()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not the id of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no run's id; they look like run_0123456789abcdef")]
pub struct InvalidRunId(String);

impl FromStr for RunId {
    type Err = InvalidRunId;

    fn from_str(text: &str) -> Result<Self, InvalidRunId> {
        let plain = |id: &str| !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match text.strip_prefix("run_") {
            Some(id) if plain(id) => Ok(Self(text.to_owned())),
            _ => Err(InvalidRunId(text.to_owned())),
        }
    }
}

/// A run as listed.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub id: RunId,
    pub plan: Plan,
    pub created_at: Timestamp,
    pub head: Head,
    /// A cancellation was requested.
    pub cancel_asked: bool,
    /// Number of its entries.
    pub entries: u64,
}

/// Progress of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub state: RunState,
    /// Set for a finished run.
    pub stop_reason: Option<StopReason>,
    pub turns: u64,
    pub usage: Usage,
    /// In billionths of a dollar.
    pub cost_nanos: u64,
    /// Time of the last heartbeat.
    pub seen_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process drives it, or did until it was killed.
    Running,
    Finished,
}

/// An event, and the change it made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    pub happened: Happened,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// The records failed. It is unknown whether anything was written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of runs")]
pub struct RunRecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

/// Entries that were not written.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another process has continued the run. The caller must stop acting on it.
    #[error("another process drives run {0}")]
    Taken(RunId),
    #[error(transparent)]
    Records(#[from] RunRecordsError),
}

/// Runs and their journals. Methods fail with [`RunRecordsError`] if the storage does.
#[async_trait]
pub trait RunRecords: Send + Sync {
    async fn begin(&self, run: &RunRecord) -> Result<(), RunRecordsError>;

    /// Appends entries after the first `count` and updates the progress, atomically. Of two writers
    /// that append after the same entries, one succeeds (compare-and-swap).
    ///
    /// # Errors
    /// [`AppendError::Taken`] if another writer came first.
    async fn append(&self, id: &RunId, count: u64, entries: &[JournalEntry], head: &Head) -> Result<(), AppendError>;

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, RunRecordsError>;

    /// Newest first.
    async fn runs(&self) -> Result<Vec<RunRecord>, RunRecordsError>;

    /// In order, without the first `skip`.
    async fn entries(&self, id: &RunId, skip: u64) -> Result<Vec<JournalEntry>, RunRecordsError>;

    /// The entries about one call, in order.
    async fn entries_of_call(&self, id: &RunId, call: &str) -> Result<Vec<JournalEntry>, RunRecordsError>;

    /// Records the answer to the question about a call. False if there already is one: the first
    /// counts.
    async fn record_answer(&self, id: &RunId, call: &str, answer: &ApprovalAnswer) -> Result<bool, RunRecordsError>;

    /// The answer to the question about a call.
    async fn find_answer(&self, id: &RunId, call: &str) -> Result<Option<ApprovalAnswer>, RunRecordsError>;

    /// Replaces the plan of a run that will be resumed.
    async fn update_plan(&self, id: &RunId, plan: &Plan) -> Result<(), RunRecordsError>;

    /// Deletes a run and its journal. Idempotent.
    async fn remove(&self, id: &RunId) -> Result<(), RunRecordsError>;

    /// Requests cancellation by the process that drives the run. False if the run does not exist.
    async fn request_cancel(&self, id: &RunId) -> Result<bool, RunRecordsError>;

    /// Withdraws such a request, so that the run can be resumed.
    async fn clear_cancel_request(&self, id: &RunId) -> Result<(), RunRecordsError>;

    /// Records that the driver lives at `now`. True if cancellation was requested.
    async fn heartbeat(&self, id: &RunId, now: Timestamp) -> Result<bool, RunRecordsError>;
}
