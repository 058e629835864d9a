//! Sends progress notifications during a call, so that the client does not time out.
//!
//! The first one is sent after a second, further ones when the progress changes, and at least every
//! 15 s. The progress number always grows, and none is sent after the response.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tools::Progress;

/// Delay of the first notification, and least interval between two.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Time for a notification in flight when the response is ready.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The latest progress that a tool reported.
#[derive(Clone, Default)]
pub(crate) struct Latest(Arc<Mutex<Option<Progress>>>);

impl Latest {
    pub(crate) fn set(&self, progress: Progress) {
        *self.0.lock() = Some(progress);
    }

    fn get(&self) -> Option<Progress> {
        self.0.lock().clone()
    }
}

/// Runs `work` and sends progress to the client until it ends.
pub(crate) async fn run_with_heartbeat<T>(
    peer: &Peer<RoleServer>,
    token: &ProgressToken,
    latest: &Latest,
    cancelled: &CancellationToken,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    let mut beat = Beat::new(Instant::now());
    let mut tick = Instant::now();
    loop {
        tick += TICK_INTERVAL;
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = cancelled.cancelled() => return work.await,
            () = sleep_until(tick) => {}
        }
        let Some((number, message)) = beat.next(latest.get(), Instant::now()) else { continue };
        let mut notification = ProgressNotificationParam::new(token.clone(), number);
        notification.message = message;
        let mut sending = pin!(peer.notify_progress(notification));
        tokio::select! {
            biased;
            done = &mut work => {
                // A notification must not arrive after the response.
                let _ = timeout(FLUSH_TIMEOUT, sending).await;
                return done;
            }
            // Sending fails only if the client is gone, and then its calls are cancelled.
            _ = &mut sending => {}
        }
    }
}

/// Decides when to send which notification.
struct Beat {
    last_sent: Option<Progress>,
    number: f64,
    at: Instant,
}

impl Beat {
    fn new(now: Instant) -> Self {
        Self { last_sent: None, number: 0.0, at: now }
    }

    fn next(&mut self, latest: Option<Progress>, now: Instant) -> Option<(f64, Option<String>)> {
        let first = self.number == 0.0;
        let changed = latest.is_some() && latest != self.last_sent;
        if !first && !changed && now - self.at < HEARTBEAT_INTERVAL {
            return None;
        }
        let bytes = latest.as_ref().map_or(0.0, |progress| progress.bytes as f64);
        self.number = bytes.max(self.number + 1.0);
        self.at = now;
        let message = latest.as_ref().map(|progress| progress.last_line.clone()).filter(|line| !line.trim().is_empty());
        self.last_sent = latest;
        Some((self.number, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_sent_at_once_and_heartbeats_every_15_s() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let progress = |bytes: u64, line: &str| Some(Progress { bytes, last_line: line.into() });
        let mut beat = Beat::new(start);
        assert_eq!(beat.next(None, after(1)), Some((1.0, None)));
        assert_eq!(beat.next(None, after(2)), None);
        assert_eq!(beat.next(progress(40, "a"), after(3)), Some((40.0, Some("a".into()))));
        assert_eq!(beat.next(progress(40, "a"), after(4)), None);
        assert_eq!(beat.next(progress(40, "a"), after(18)), Some((41.0, Some("a".into()))), "a heartbeat grows too");
        assert_eq!(beat.next(progress(40, "b"), after(19)), Some((42.0, Some("b".into()))));
        assert_eq!(beat.next(progress(900, " "), after(20)), Some((900.0, None)));
    }
}
