//! Records the cost of a run's model calls in the usage records of workspaces.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use workspace::ledger::Usd;
use workspace::records::{DatabaseRecords, Payer, Tokens, UsageRecords as _};

use crate::event::{Event, Happened};
use crate::records::RunId;

/// Records the usage of one run.
#[derive(Clone)]
pub struct UsageRecorder {
    pub records: DatabaseRecords,
    pub run: RunId,
    pub project: String,
    /// The job that pays, besides the project.
    pub job: String,
    pub model: String,
}

impl UsageRecorder {
    /// Records the tokens of a usage event. Idempotent; a failed write is logged and the usage is
    /// lost.
    pub async fn record(&self, happened: &Happened) {
        let Event::Usage { usage, cost_usd, .. } = &happened.event else { return };
        let tokens = Tokens {
            id: event_id(&self.run, happened.seq),
            at: Timestamp::now(),
            payer: Payer { project: self.project.clone(), job: Some(self.job.clone()) },
            model: self.model.clone(),
            input: usage.prompt(),
            output: usage.output_tokens,
            cost: cost_usd.and_then(Usd::from_dollars).unwrap_or(Usd::ZERO),
        };
        if let Err(error) = self.records.record_tokens(&tokens).await {
            tracing::warn!(%error, "token usage of a run was not recorded");
        }
    }
}

/// Derives a stable id from run and event, so that a repeated record counts once.
fn event_id(run: &RunId, seq: u64) -> Uuid {
    let hash = Sha256::digest(format!("{run}/{seq}").as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Uuid::from_bytes(bytes)
}
