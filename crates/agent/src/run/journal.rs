//! Writes down what happens before anybody acts on it or hears of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

use super::RunError;
use crate::change::Change;
use crate::event::{Event, Happened};
use crate::feed::Feed;
use crate::records::{AppendError, Entry, Head, RunId, RunRecords};
use crate::workplace::Workplace;

/// Attempts to write, and the wait after the first one; each further wait is twice as long. A database that restarts is
/// back within them.
const ATTEMPTS: u32 = 6;
const WAIT: Duration = Duration::from_millis(100);

pub(super) struct Journal {
    records: Arc<dyn RunRecords>,
    id: RunId,
    teller: Teller,
    /// Entries that are written.
    count: u64,
    pending: Vec<Entry>,
}

/// Tells what is only for eyes.
#[derive(Clone)]
pub(super) struct Teller {
    feed: Feed,
    seq: Arc<AtomicU64>,
    turn: u64,
    workplace: Arc<dyn Workplace>,
}

impl Teller {
    /// The text is masked here.
    pub(super) fn delta(&self, event: impl FnOnce(String) -> Event, text: &str) {
        let happened = self.happened(event(self.workplace.mask(text)));
        self.feed.tell(&happened);
    }

    fn happened(&self, event: Event) -> Happened {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        Happened { seq, ts: Timestamp::now(), turn: self.turn, dropped: 0, event }
    }
}

impl Journal {
    /// `count` entries are there already, and the next event has number `seq`.
    pub(super) fn new(
        records: Arc<dyn RunRecords>,
        id: RunId,
        feed: Feed,
        workplace: Arc<dyn Workplace>,
        count: u64,
        seq: u64,
    ) -> Self {
        let teller = Teller { feed, seq: Arc::new(AtomicU64::new(seq)), turn: 0, workplace };
        Self { records, id, teller, count, pending: Vec::new() }
    }

    pub(super) fn at_turn(&mut self, turn: u64) {
        self.teller.turn = turn;
    }

    pub(super) fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// Notes what is to be written next. Secrets are masked by whoever made the event.
    pub(super) fn note(&mut self, event: Event, change: Option<Change>) {
        let happened = self.teller.happened(event);
        self.pending.push(Entry { happened, change });
    }

    /// Writes what was noted, then tells it.
    pub(super) async fn flush(&mut self, head: &Head) -> Result<(), RunError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.pending);
        self.write(&entries, head).await?;
        self.count += u64::try_from(entries.len()).unwrap_or(u64::MAX);
        for entry in &entries {
            self.teller.feed.tell(&entry.happened);
        }
        Ok(())
    }

    async fn write(&self, entries: &[Entry], head: &Head) -> Result<(), RunError> {
        let mut failed = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(WAIT * 2_u32.pow(attempt - 1)).await;
            }
            match self.records.append(&self.id, self.count, entries, head).await {
                Ok(()) => return Ok(()),
                // The attempt before may have been written although it failed.
                Err(AppendError::Taken(_)) if failed.is_some() && self.is_last(entries).await => return Ok(()),
                Err(AppendError::Taken(id)) => return Err(RunError::Taken(id)),
                Err(AppendError::Records(error)) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| RunError::Taken(self.id.clone()), RunError::Records))
    }

    async fn is_last(&self, entries: &[Entry]) -> bool {
        let written = self.records.entries(&self.id, self.count).await.unwrap_or_default();
        written.len() == entries.len() && written.iter().zip(entries).all(|(a, b)| a.happened.seq == b.happened.seq)
    }
}
