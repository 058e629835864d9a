//! Rate-limited log lines for events that a remote client can cause thousands of times a second: at
//! most one per minute, the first at once, those after it as a count.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const INTERVAL: Duration = Duration::from_secs(60);

/// Writes a line: how many events since the last line, and the peer of the newest.
type Report = Box<dyn Fn(u64, SocketAddr) + Send + Sync>;

pub(crate) struct Tally {
    report: Report,
    tasks: TaskTracker,
    end: CancellationToken,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Quiet,
    /// Within a minute of the last line; contains the events since then.
    Counting(Option<(u64, SocketAddr)>),
}

impl Tally {
    /// The task that waits for the minute belongs to `tasks` and ends with `end`.
    pub(crate) fn new(
        tasks: &TaskTracker,
        end: &CancellationToken,
        report: impl Fn(u64, SocketAddr) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (tasks, end) = (tasks.clone(), end.clone());
        Arc::new(Self { report: Box::new(report), tasks, end, state: Mutex::default() })
    }

    pub(crate) fn count(self: &Arc<Self>, peer: SocketAddr) {
        match &mut *self.state() {
            State::Counting(counted) => {
                let before = counted.map_or(0, |(count, _)| count);
                *counted = Some((before + 1, peer));
                return;
            }
            quiet => *quiet = State::Counting(None),
        }
        (self.report)(1, peer);
        let tally = Arc::clone(self);
        self.tasks.spawn(async move { tally.report_every_minute().await });
    }

    /// Reports until a minute passes without an event.
    async fn report_every_minute(&self) {
        loop {
            let stopped = self.end.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none();
            let counted = {
                let mut state = self.state();
                match mem::take(&mut *state) {
                    State::Counting(Some(counted)) => {
                        *state = State::Counting(None);
                        Some(counted)
                    }
                    State::Counting(None) | State::Quiet => None,
                }
            };
            match counted {
                Some((count, peer)) => (self.report)(count, peer),
                None => return,
            }
            if stopped {
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_makes_two_lines() {
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        let lines: Arc<Mutex<Vec<(u64, u16)>>> = Arc::default();
        let written = Arc::clone(&lines);
        let tally = Tally::new(&tasks, &end, move |count, peer| {
            written.lock().push((count, peer.port()));
        });
        let peer = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let lines = || lines.lock().clone();
        for port in 1..=2000 {
            tally.count(peer(port));
        }
        assert_eq!(lines(), [(1, 1)], "the first at once");
        tokio::time::sleep(INTERVAL * 3).await;
        assert_eq!(lines(), [(1, 1), (1999, 2000)], "the others as a count, then silence");
        tally.count(peer(7));
        tally.count(peer(8));
        assert_eq!(lines().last(), Some(&(1, 7)), "after a quiet minute, at once again");
        end.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(lines().last(), Some(&(1, 8)), "nothing is left out when the server ends");
    }
}
