//! Write-ahead journal of a run: events are recorded before the run acts on them or publishes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use super::RunError;
use crate::change::Change;
use crate::checkpoint::Checkpointer;
use crate::event::{Event, Happened};
use crate::feed::Feed;
use crate::records::{AppendError, Head, JournalEntry, RunId, RunRecords};

/// Attempts to write, and the first backoff, which doubles. They outlast the restart of a database.
const MAX_ATTEMPTS: u32 = 6;
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

pub(super) struct Journal {
    records: Arc<dyn RunRecords>,
    id: RunId,
    delta_sender: DeltaSender,
    /// Number of written entries.
    count: u64,
    pending: Vec<JournalEntry>,
}

/// Publishes deltas, which are not recorded.
#[derive(Clone)]
pub(super) struct DeltaSender {
    feed: Feed,
    seq: Arc<AtomicU64>,
    turn: u64,
    checkpointer: Arc<dyn Checkpointer>,
}

impl DeltaSender {
    /// Publishes a delta with its text masked.
    pub(super) fn delta(&self, event: impl FnOnce(String) -> Event, text: &str) {
        let happened = self.happened(event(self.checkpointer.mask(text)));
        self.feed.publish(&happened);
    }

    fn happened(&self, event: Event) -> Happened {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        Happened { seq, ts: Timestamp::now(), turn: self.turn, dropped: 0, event }
    }
}

impl Journal {
    /// `count` entries exist already, and the next event has number `seq`.
    pub(super) fn new(
        records: Arc<dyn RunRecords>,
        id: RunId,
        feed: Feed,
        checkpointer: Arc<dyn Checkpointer>,
        count: u64,
        seq: u64,
    ) -> Self {
        let delta_sender = DeltaSender { feed, seq: Arc::new(AtomicU64::new(seq)), turn: 0, checkpointer };
        Self { records, id, delta_sender, count, pending: Vec::new() }
    }

    pub(super) fn set_turn(&mut self, turn: u64) {
        self.delta_sender.turn = turn;
    }

    pub(super) fn delta_sender(&self) -> DeltaSender {
        self.delta_sender.clone()
    }

    /// Queues an event for the next flush. The caller has masked secrets.
    pub(super) fn record(&mut self, event: Event, change: Option<Change>) {
        let happened = self.delta_sender.happened(event);
        self.pending.push(JournalEntry { happened, change });
    }

    /// Writes the queued events, then publishes them.
    pub(super) async fn flush(&mut self, head: &Head) -> Result<(), RunError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.pending);
        self.write(&entries, head).await?;
        self.count += u64::try_from(entries.len()).unwrap_or(u64::MAX);
        for entry in &entries {
            self.delta_sender.feed.publish(&entry.happened);
        }
        Ok(())
    }

    async fn write(&self, entries: &[JournalEntry], head: &Head) -> Result<(), RunError> {
        let mut failed = None;
        for attempt in 0..MAX_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(INITIAL_BACKOFF * 2_u32.pow(attempt - 1)).await;
            }
            match self.records.append(&self.id, self.count, entries, head).await {
                Ok(()) => return Ok(()),
                // The previous attempt may have been committed although it reported an error.
                Err(AppendError::Taken(_)) if failed.is_some() && self.is_last(entries).await => return Ok(()),
                Err(AppendError::Taken(id)) => return Err(RunError::Taken(id)),
                Err(AppendError::Records(error)) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| RunError::Taken(self.id.clone()), RunError::Records))
    }

    async fn is_last(&self, entries: &[JournalEntry]) -> bool {
        let written = self.records.entries(&self.id, self.count).await.unwrap_or_default();
        written.len() == entries.len() && written.iter().zip(entries).all(|(a, b)| a.happened.seq == b.happened.seq)
    }
}
