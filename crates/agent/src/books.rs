//! Writes down what a run's model has cost, in the book that workspaces have.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use workspace::ledger::Usd;
use workspace::records::{DatabaseRecords, Payer, Tokens, UsageRecords as _};

use crate::event::{Event, Happened};
use crate::records::RunId;

/// The book of one run.
#[derive(Clone)]
pub struct Books {
    pub records: DatabaseRecords,
    pub run: RunId,
    pub project: String,
    /// On whose account it is, besides the project's.
    pub job: String,
    pub model: String,
}

impl Books {
    /// Notes what an event says of it. Noting it again counts once; a book that cannot be written now stays without it.
    pub async fn note(&self, happened: &Happened) {
        let Event::Usage { usage, cost_usd, .. } = &happened.event else { return };
        let tokens = Tokens {
            id: id(&self.run, happened.seq),
            at: Timestamp::now(),
            payer: Payer { project: self.project.clone(), job: Some(self.job.clone()) },
            model: self.model.clone(),
            input: usage.prompt(),
            output: usage.output_tokens,
            cost: cost_usd.and_then(Usd::from_dollars).unwrap_or(Usd::ZERO),
        };
        if let Err(error) = self.records.note_tokens(&tokens).await {
            tracing::warn!(%error, "tokens of a run were not noted");
        }
    }
}

/// The same for the same event, so that noting it again counts once.
fn id(run: &RunId, seq: u64) -> Uuid {
    let hash = Sha256::digest(format!("{run}/{seq}").as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Uuid::from_bytes(bytes)
}
