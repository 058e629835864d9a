//! Writes down what a run's model has cost, so that `sandbar usage` knows of it.

use agent::{Event, Happened, RunId};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;
use workspace::ledger::Usd;
use workspace::records::{DatabaseRecords, Payer, Tokens, UsageRecords as _};

pub(super) struct Books {
    pub(super) records: DatabaseRecords,
    pub(super) run: RunId,
    pub(super) project: String,
    pub(super) model: String,
}

impl Books {
    pub(super) async fn note(&self, happened: &Happened) {
        let Event::Usage { usage, cost_usd, .. } = &happened.event else { return };
        let tokens = Tokens {
            id: id(&self.run, happened.seq),
            at: Timestamp::now(),
            payer: Payer { project: self.project.clone(), job: Some(self.run.to_string()) },
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
