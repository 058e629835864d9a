//! How events reach those who watch. One slow watcher delays neither the run nor the others: what matters waits for it, in
//! order and without limit, since a run has few of it; deltas that find too much waiting are dropped and counted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use crate::event::Happened;

/// With so many events waiting, deltas are dropped.
const PATIENCE: usize = 1024;

/// Where a run tells what happens. Clones are the same feed.
#[derive(Debug, Clone, Default)]
pub struct Feed {
    watchers: Arc<Mutex<Vec<Weak<Queue>>>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Happened>,
    dropped: u64,
    closed: bool,
}

/// Somebody who watches. Dropping it ends that.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<Queue>,
}

impl Feed {
    /// Watches from now on.
    pub fn watch(&self) -> Watcher {
        let queue = Arc::new(Queue::default());
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&queue));
        Watcher { queue }
    }

    pub(crate) fn tell(&self, happened: &Happened) {
        self.each(|queue| {
            let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if happened.event.is_delta() && waiting.events.len() >= PATIENCE {
                waiting.dropped += 1;
                return;
            }
            let dropped = std::mem::take(&mut waiting.dropped);
            waiting.events.push_back(Happened { dropped, ..happened.clone() });
            drop(waiting);
            queue.more.notify_one();
        });
    }

    /// There will be no more: watchers get what waits, then nothing.
    pub fn close(&self) {
        self.each(|queue| {
            queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
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
    /// The next event; nothing after the last. Safe to cancel.
    pub async fn next(&mut self) -> Option<Happened> {
        loop {
            {
                let mut waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(happened) = waiting.events.pop_front() {
                    return Some(happened);
                }
                if waiting.closed {
                    return None;
                }
            }
            self.queue.more.notified().await;
        }
    }

    /// What waits now, without waiting for more.
    pub fn drain(&mut self) -> Vec<Happened> {
        self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).events.drain(..).collect()
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
    async fn deltas_are_dropped_and_counted_and_the_rest_is_not() {
        let feed = Feed::default();
        let mut slow = feed.watch();
        let patience = u64::try_from(PATIENCE).expect("small");
        for seq in 0..patience + 7 {
            feed.tell(&happened(seq, Event::TextDelta { text: "x".into() }));
        }
        feed.tell(&happened(patience + 7, Event::TurnStarted {}));
        feed.close();
        let mut got = Vec::new();
        while let Some(next) = slow.next().await {
            got.push(next);
        }
        assert_eq!(got.len(), PATIENCE + 1);
        let last = got.last().expect("some");
        assert_eq!((last.dropped, &last.event), (7, &Event::TurnStarted {}));
        assert!(got.is_sorted_by_key(|one| one.seq));
    }
}
