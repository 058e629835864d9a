//! Delivers timeline events to watchers. The records are the source, so that no watcher misses an
//! event and all processes deliver the same; events that this process writes are delivered at once.
//!
//! Each watched job has one broadcast channel. After a write, [`Timeline::publish`] reads the new
//! events and sends them to the job's watchers; one task polls for events of other processes. A
//! watcher that finds a gap reads the records itself. Deltas bypass the records.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast::{self, error::RecvError};
use tracing::warn;

use crate::events::{EventBody, StudioEvent, TimelineEvent};
use crate::id::JobId;
use crate::records::{Records, RecordsError};

/// Events buffered per watcher. A slower watcher reads the records instead, and loses deltas.
const CHANNEL_CAPACITY: usize = 1024;
/// The delay after a failed read of the records.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub(crate) type SharedEvent = Arc<TimelineEvent>;

pub(crate) struct Timeline {
    records: Records,
    channels: Mutex<HashMap<JobId, Weak<Channel>>>,
}

struct Channel {
    sender: broadcast::Sender<SharedEvent>,
    /// The number of the last event that was sent. The holder of the lock sends; a watcher that has
    /// read ahead does not advance it, because the other watchers have not.
    head: tokio::sync::Mutex<u64>,
}

impl Timeline {
    pub(crate) fn new(records: Records) -> Arc<Self> {
        Arc::new(Self { records, channels: Mutex::default() })
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<JobId, Weak<Channel>>> {
        self.channels.lock()
    }

    fn channel(&self, job: &JobId) -> Option<Arc<Channel>> {
        self.channels().get(job).and_then(Weak::upgrade)
    }

    /// Whether this process has a watcher of the job.
    pub(crate) fn is_watched(&self, job: &JobId) -> bool {
        self.channel(job).is_some()
    }

    /// Sends the new events of the records to the job's watchers. Reads nothing without watchers.
    pub(crate) async fn publish(&self, job: &JobId) {
        let Some(channel) = self.channel(job) else { return };
        if let Err(error) = self.catch_up(job, &channel).await {
            // The poll for events of other processes sends them later.
            warn!(%job, error = %text::error_chain(&error), "cannot read new events; the next poll delivers them");
        }
    }

    async fn catch_up(&self, job: &JobId, channel: &Channel) -> Result<(), RecordsError> {
        let mut head = channel.head.lock().await;
        loop {
            let new = self.records.events(job, *head).await?;
            let Some(last) = new.last().and_then(|event| event.seq) else { return Ok(()) };
            for event in new {
                // Fails only without receivers.
                let _ = channel.sender.send(Arc::new(event));
            }
            *head = last;
        }
    }

    /// Sends an event that is not recorded.
    pub(crate) fn publish_delta(&self, job: &JobId, body: EventBody) {
        if let Some(channel) = self.channel(job) {
            let _ = channel.sender.send(Arc::new(TimelineEvent { seq: None, ts: Timestamp::now(), body }));
        }
    }

    /// Sends the last event of a job and removes its channel, so that it is sent once.
    pub(crate) fn publish_deleted(&self, job: &JobId) {
        let channel = self.channels().remove(job).and_then(|channel| channel.upgrade());
        if let Some(channel) = channel {
            let _ = channel.sender.send(Arc::new(TimelineEvent {
                seq: None,
                ts: Timestamp::now(),
                body: StudioEvent::Deleted {}.into(),
            }));
        }
    }

    /// Polls for events of other processes, until the timeline is dropped.
    pub(crate) async fn poll_forever(timeline: Weak<Self>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some(timeline) = timeline.upgrade() else { return };
            timeline.poll_records().await;
        }
    }

    async fn poll_records(&self) {
        let watched: Vec<JobId> = {
            let mut channels = self.channels();
            channels.retain(|_, channel| channel.strong_count() > 0);
            channels.keys().cloned().collect()
        };
        if watched.is_empty() {
            return;
        }
        let counts = match self.records.event_counts(&watched).await {
            Ok(counts) => counts,
            Err(error) => return warn!(error = %text::error_chain(&error), "cannot poll for new events; trying again"),
        };
        for (job, count) in counts {
            let Some(count) = count else {
                self.publish_deleted(&job);
                continue;
            };
            let Some(channel) = self.channel(&job) else { continue };
            let behind = *channel.head.lock().await < count;
            if behind {
                self.publish(&job).await;
            }
        }
    }

    /// The events after event `after`, then new events, without end. `events` is the number of
    /// events that the job has now.
    pub(crate) fn watch(self: &Arc<Self>, job: JobId, after: u64, events: u64) -> BoxStream<'static, SharedEvent> {
        let channel = {
            let mut channels = self.channels();
            match channels.get(&job).and_then(Weak::upgrade) {
                Some(channel) => channel,
                None => {
                    let channel = Arc::new(Channel {
                        sender: broadcast::channel(CHANNEL_CAPACITY).0,
                        head: tokio::sync::Mutex::new(events),
                    });
                    channels.insert(job.clone(), Arc::downgrade(&channel));
                    channel
                }
            }
        };
        let watcher = Watcher {
            // Subscribes before it reads the records, so that no event is lost between the two.
            receiver: channel.sender.subscribe(),
            timeline: Arc::clone(self),
            _channel: channel,
            job,
            last: after,
            replay: VecDeque::new(),
            behind: true,
        };
        stream::unfold(watcher, |mut watcher| async move {
            let next = watcher.next().await?;
            Some((next, watcher))
        })
        .boxed()
    }
}

struct Watcher {
    timeline: Arc<Timeline>,
    /// Keeps the channel open; never read.
    _channel: Arc<Channel>,
    receiver: broadcast::Receiver<SharedEvent>,
    job: JobId,
    /// The number of the last event that was yielded.
    last: u64,
    replay: VecDeque<TimelineEvent>,
    /// The records have, or may have, the next event.
    behind: bool,
}

impl Watcher {
    async fn next(&mut self) -> Option<SharedEvent> {
        loop {
            if let Some(event) = self.replay.pop_front() {
                self.last = event.seq.unwrap_or(self.last);
                return Some(Arc::new(event));
            }
            if self.behind {
                self.read().await;
                continue;
            }
            match self.receiver.recv().await {
                Ok(event) => match event.seq {
                    Some(seq) if seq <= self.last => {}
                    Some(seq) if seq > self.last + 1 => self.behind = true,
                    Some(seq) => {
                        self.last = seq;
                        return Some(event);
                    }
                    None => return Some(event),
                },
                Err(RecvError::Lagged(_)) => self.behind = true,
                Err(RecvError::Closed) => return None,
            }
        }
    }

    async fn read(&mut self) {
        match self.timeline.records.events(&self.job, self.last).await {
            Ok(events) => {
                self.behind = !events.is_empty();
                self.replay.extend(events);
            }
            Err(error) => {
                warn!(job = %self.job, error = %text::error_chain(&error), "cannot read a timeline; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}
