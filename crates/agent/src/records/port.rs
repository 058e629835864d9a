//! What the loop needs of a memory that outlives the process. Every implementation passes the contract in `tests/agent`.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::approval::Answer;
use crate::change::Change;
use crate::event::Happened;
use crate::model::Usage;
use crate::plan::Plan;
use crate::stop::StopReason;

/// Names a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    /// A new one.
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

/// No run has such a name.
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

/// A run as a list shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub id: RunId,
    pub plan: Plan,
    pub created_at: Timestamp,
    pub head: Head,
    /// Somebody wants it to stop.
    pub cancel_asked: bool,
    /// How many entries it has.
    pub entries: u64,
}

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub state: RunState,
    /// Of a finished run.
    pub stop_reason: Option<StopReason>,
    pub turns: u64,
    pub usage: Usage,
    /// Billionths of a dollar.
    pub cost_nanos: u64,
    /// When its process was heard of last.
    pub seen_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process drives it, or did until it was killed.
    Running,
    Finished,
}

/// One thing that happened, and what it changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub happened: Happened,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// The memory itself failed. Nothing is known to be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} the records of runs")]
pub struct RunRecordsError {
    pub what: &'static str,
    pub source: Box<dyn Error + Send + Sync>,
}

/// Entries that were not written.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Somebody else goes on with the run. Stop acting on it.
    #[error("another process drives run {0}")]
    Taken(RunId),
    #[error(transparent)]
    Records(#[from] RunRecordsError),
}

/// Runs and what happened in them.
#[async_trait]
pub trait RunRecords: Send + Sync {
    async fn begin(&self, run: &RunRecord) -> Result<(), RunRecordsError>;

    /// Writes entries after the first `count`, and where the run stands with them: all or nothing. Of two that write after
    /// the same entries one succeeds.
    async fn append(&self, id: &RunId, count: u64, entries: &[Entry], head: &Head) -> Result<(), AppendError>;

    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>, RunRecordsError>;

    /// The newest first.
    async fn runs(&self) -> Result<Vec<RunRecord>, RunRecordsError>;

    /// In order, without the first `skip`.
    async fn entries(&self, id: &RunId, skip: u64) -> Result<Vec<Entry>, RunRecordsError>;

    /// What was told of one call, in order.
    async fn of_call(&self, id: &RunId, call: &str) -> Result<Vec<Entry>, RunRecordsError>;

    /// Keeps the answer to the question about a call. False when there is one already: the first counts.
    async fn answer(&self, id: &RunId, call: &str, answer: &Answer) -> Result<bool, RunRecordsError>;

    /// The answer to the question about a call.
    async fn answered(&self, id: &RunId, call: &str) -> Result<Option<Answer>, RunRecordsError>;

    /// Replaces the limits of a run that is to go on.
    async fn replan(&self, id: &RunId, plan: &Plan) -> Result<(), RunRecordsError>;

    /// Removes a run with all that was recorded of it. Removing what is absent succeeds.
    async fn remove(&self, id: &RunId) -> Result<(), RunRecordsError>;

    /// Asks whoever drives it to stop. False when there is no such run.
    async fn ask_to_cancel(&self, id: &RunId) -> Result<bool, RunRecordsError>;

    /// Takes such a wish back: the run is to go on.
    async fn forget_cancel(&self, id: &RunId) -> Result<(), RunRecordsError>;

    /// The driver lives at `now`. True when somebody wants it to stop.
    async fn touch(&self, id: &RunId, now: Timestamp) -> Result<bool, RunRecordsError>;
}
