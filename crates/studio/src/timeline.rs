//! How what happens in jobs reaches those who watch: from the records, so that nobody misses anything and all processes tell
//! the same, and at once when this process wrote it.
//!
//! Each job that somebody watches has one channel. Whoever has written calls [`Timeline::caught_up`], which reads what is new and
//! hands it to all watchers of the job; one task looks for what other processes have written. A watcher that finds a
//! gap reads the records itself. Deltas go past the records.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use tokio::sync::broadcast::{self, error::RecvError};
use tracing::warn;

use crate::body::{self, Body};
use crate::id::JobId;
use crate::records::{Records, RecordsError};
use crate::view::TimelineEvent;

/// Events that may wait for a slow watcher; with more, it reads the records instead, and loses deltas.
const ROOM: usize = 1024;
/// After the records could not be read.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) type Told = Arc<TimelineEvent>;

pub(crate) struct Timeline {
    records: Records,
    channels: Mutex<HashMap<JobId, Weak<Channel>>>,
}

struct Channel {
    sender: broadcast::Sender<Told>,
    /// The number of the last event that was handed on. Who has the lock hands on; a watcher who has read further by itself
    /// leaves it alone, since the others have not.
    head: tokio::sync::Mutex<u64>,
}

impl Timeline {
    pub(crate) fn new(records: Records) -> Arc<Self> {
        Arc::new(Self { records, channels: Mutex::default() })
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<JobId, Weak<Channel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self, job: &JobId) -> Option<Arc<Channel>> {
        self.channels().get(job).and_then(Weak::upgrade)
    }

    /// Whether a watcher of this job is in this process.
    pub(crate) fn is_watched(&self, job: &JobId) -> bool {
        self.channel(job).is_some()
    }

    /// Hands on what stands in the records. Nobody is asked when nobody watches.
    pub(crate) async fn caught_up(&self, job: &JobId) {
        let Some(channel) = self.channel(job) else { return };
        if let Err(error) = self.catch_up(job, &channel).await {
            // The look for other processes' events will find them.
            warn!(%job, error = %crate::chain(&error), "watchers hear of an event later");
        }
    }

    async fn catch_up(&self, job: &JobId, channel: &Channel) -> Result<(), RecordsError> {
        let mut head = channel.head.lock().await;
        loop {
            let new = self.records.events(job, *head).await?;
            let Some(last) = new.last().and_then(|event| event.seq) else { return Ok(()) };
            for event in new {
                // Nobody listens any more: then nobody misses it.
                let _ = channel.sender.send(Arc::new(event));
            }
            *head = last;
        }
    }

    /// Something for eyes only.
    pub(crate) fn delta(&self, job: &JobId, body: Body) {
        if let Some(channel) = self.channel(job) {
            let _ = channel.sender.send(Arc::new(TimelineEvent { seq: None, ts: Timestamp::now(), body }));
        }
    }

    /// The last that is told of a job; once, whoever deleted it.
    pub(crate) fn deleted(&self, job: &JobId) {
        let channel = self.channels().remove(job).and_then(|channel| channel.upgrade());
        if let Some(channel) = channel {
            let _ =
                channel.sender.send(Arc::new(TimelineEvent { seq: None, ts: Timestamp::now(), body: body::deleted() }));
        }
    }

    /// Looks for what other processes have written, for as long as there is a timeline.
    pub(crate) async fn listen(timeline: Weak<Self>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let Some(timeline) = timeline.upgrade() else { return };
            timeline.hear().await;
        }
    }

    async fn hear(&self) {
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
            Err(error) => return warn!(error = %crate::chain(&error), "watchers hear of events later"),
        };
        for (job, count) in counts {
            let Some(count) = count else {
                self.deleted(&job);
                continue;
            };
            let Some(channel) = self.channel(&job) else { continue };
            let behind = *channel.head.lock().await < count;
            if behind {
                self.caught_up(&job).await;
            }
        }
    }

    /// What happened after event `after`, then what happens, without end. The job is known to have had `events` by now.
    pub(crate) fn watch(self: &Arc<Self>, job: JobId, after: u64, events: u64) -> BoxStream<'static, Told> {
        let channel = {
            let mut channels = self.channels();
            match channels.get(&job).and_then(Weak::upgrade) {
                Some(channel) => channel,
                None => {
                    let channel =
                        Arc::new(Channel { sender: broadcast::channel(ROOM).0, head: tokio::sync::Mutex::new(events) });
                    channels.insert(job.clone(), Arc::downgrade(&channel));
                    channel
                }
            }
        };
        let watcher = Watcher {
            // Before the records are read, so that nothing falls between the two.
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
    /// Held, not read: without watchers nothing is handed on.
    _channel: Arc<Channel>,
    receiver: broadcast::Receiver<Told>,
    job: JobId,
    /// The number of the last event that was given.
    last: u64,
    replay: VecDeque<TimelineEvent>,
    /// The records have, or may have, what comes next.
    behind: bool,
}

impl Watcher {
    async fn next(&mut self) -> Option<Told> {
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
                Ok(told) => match told.seq {
                    Some(seq) if seq <= self.last => {}
                    Some(seq) if seq > self.last + 1 => self.behind = true,
                    Some(seq) => {
                        self.last = seq;
                        return Some(told);
                    }
                    None => return Some(told),
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
                warn!(job = %self.job, error = %crate::chain(&error), "a timeline cannot be read; trying again");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
