//! Distributes events to watchers without backpressure on the run. Each watcher has a queue; deltas
//! are dropped and counted when it is long, other events never, since a run has few of them.

use std::collections::VecDeque;
#[cfg(not(loom))]
use std::sync::Mutex;
use std::sync::{Arc, PoisonError, Weak};

#[cfg(loom)]
use loom::sync::Mutex;
use tokio::sync::Notify;

use crate::event::Happened;

/// Queue length above which deltas are dropped.
const MAX_PENDING: usize = if cfg!(loom) { 1 } else { 1024 };

/// Publishes the events of a run. Clones share the watchers.
#[derive(Debug, Clone, Default)]
pub struct Feed {
    watchers: Arc<Mutex<Vec<Weak<Queue>>>>,
}

#[derive(Debug, Default)]
struct Queue {
    pending: Mutex<Pending>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    events: VecDeque<Happened>,
    dropped: u64,
    closed: bool,
}

/// Receives events. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<Queue>,
}

impl Feed {
    /// Subscribes to events from now on.
    pub fn watch(&self) -> Watcher {
        let queue = Arc::new(Queue::default());
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&queue));
        Watcher { queue }
    }

    pub(crate) fn publish(&self, happened: &Happened) {
        self.each(|queue| {
            let mut pending = queue.pending.lock().unwrap_or_else(PoisonError::into_inner);
            if happened.event.is_delta() && pending.events.len() >= MAX_PENDING {
                pending.dropped += 1;
                return;
            }
            let dropped = std::mem::take(&mut pending.dropped);
            pending.events.push_back(Happened { dropped, ..happened.clone() });
            drop(pending);
            queue.more.notify_one();
        });
    }

    /// Ends the feed: watchers receive the queued events, then `None`.
    pub fn close(&self) {
        self.each(|queue| {
            queue.pending.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
            queue.more.notify_one();
        });
    }

    fn each(&self, act: impl Fn(&Queue)) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|watcher| match watcher.upgrade() {
            Some(queue) => {
                act(&queue);
                true
            }
            None => false,
        });
    }
}

impl Watcher {
    /// The next event, or `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<Happened> {
        loop {
            {
                let mut pending = self.queue.pending.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(happened) = pending.events.pop_front() {
                    return Some(happened);
                }
                if pending.closed {
                    return None;
                }
            }
            self.queue.more.notified().await;
        }
    }

    /// The queued events, without waiting for more.
    pub fn drain(&mut self) -> Vec<Happened> {
        self.queue.pending.lock().unwrap_or_else(PoisonError::into_inner).events.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use jiff::Timestamp;

    fn happened(seq: u64, event: Event) -> Happened {
        Happened { seq, ts: Timestamp::UNIX_EPOCH, turn: 1, dropped: 0, event }
    }

    #[tokio::test]
    async fn slow_watchers_miss_only_deltas() {
        let feed = Feed::default();
        let mut slow = feed.watch();
        let limit = u64::try_from(MAX_PENDING).expect("small");
        for seq in 0..limit + 7 {
            feed.publish(&happened(seq, Event::TextDelta { text: "x".into() }));
        }
        feed.publish(&happened(limit + 7, Event::TurnStarted {}));
        feed.close();
        let mut got = Vec::new();
        while let Some(next) = slow.next().await {
            got.push(next);
        }
        assert_eq!(got.len(), MAX_PENDING + 1);
        let last = got.last().expect("some");
        assert_eq!((last.dropped, &last.event), (7, &Event::TurnStarted {}));
        assert!(got.is_sorted_by_key(|one| one.seq));
    }
}
