//! Tells a waiting client that a call is still going on, so that it does not lose patience.
//!
//! The first word comes after a second; then whenever there is something new, and every 15 s when there is not. The number
//! always grows, and nothing comes after the answer.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RoleServer};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tools::Progress;

/// The first word, and how often there may be another.
const TICK: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(15);
/// For a word that is on its way when the answer is ready.
const LAST_WORD: Duration = Duration::from_secs(2);

/// What a tool said last about how it goes.
#[derive(Clone, Default)]
pub(crate) struct Latest(Arc<Mutex<Option<Progress>>>);

impl Latest {
    pub(crate) fn set(&self, progress: Progress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    fn get(&self) -> Option<Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Does the work and tells the client about it meanwhile.
pub(crate) async fn during<T>(
    peer: &Peer<RoleServer>,
    token: &ProgressToken,
    latest: &Latest,
    given_up: &CancellationToken,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    let mut beat = Beat::new(Instant::now());
    let mut tick = Instant::now();
    loop {
        tick += TICK;
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = given_up.cancelled() => return work.await,
            () = sleep_until(tick) => {}
        }
        let Some((number, message)) = beat.next(latest.get(), Instant::now()) else { continue };
        let mut word = ProgressNotificationParam::new(token.clone(), number);
        word.message = message;
        let mut telling = pin!(peer.notify_progress(word));
        tokio::select! {
            biased;
            done = &mut work => {
                // It must not arrive after the answer.
                let _ = timeout(LAST_WORD, telling).await;
                return done;
            }
            // A client that cannot be told is gone, and its calls are cancelled.
            _ = &mut telling => {}
        }
    }
}

/// Decides what to say when.
struct Beat {
    said: Option<Progress>,
    number: f64,
    at: Instant,
}

impl Beat {
    fn new(now: Instant) -> Self {
        Self { said: None, number: 0.0, at: now }
    }

    fn next(&mut self, latest: Option<Progress>, now: Instant) -> Option<(f64, Option<String>)> {
        let first = self.number == 0.0;
        let news = latest.is_some() && latest != self.said;
        if !first && !news && now - self.at < SILENCE {
            return None;
        }
        let bytes = latest.as_ref().map_or(0.0, |progress| progress.bytes as f64);
        self.number = bytes.max(self.number + 1.0);
        self.at = now;
        let message = latest.as_ref().map(|progress| progress.last_line.clone()).filter(|line| !line.trim().is_empty());
        self.said = latest;
        Some((self.number, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_broken_every_fifteen_seconds_and_news_are_told_at_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let said = |bytes: u64, line: &str| Some(Progress { bytes, last_line: line.into() });
        let mut beat = Beat::new(start);
        assert_eq!(beat.next(None, after(1)), Some((1.0, None)));
        assert_eq!(beat.next(None, after(2)), None);
        assert_eq!(beat.next(said(40, "a"), after(3)), Some((40.0, Some("a".into()))));
        assert_eq!(beat.next(said(40, "a"), after(4)), None);
        assert_eq!(beat.next(said(40, "a"), after(18)), Some((41.0, Some("a".into()))), "a heartbeat grows too");
        assert_eq!(beat.next(said(40, "b"), after(19)), Some((42.0, Some("b".into()))));
        assert_eq!(beat.next(said(900, " "), after(20)), Some((900.0, None)));
    }
}
