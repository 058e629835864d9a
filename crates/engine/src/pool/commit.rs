//! Group commit: one `syncfs` of the pool at a time. Callers that arrive while one runs share the
//! next one, so that a hundred pauses at once cost two flushes of the disk and not a hundred.

use std::io;

use parking_lot::{Condvar, Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(super) struct GroupCommit {
    state: Mutex<State>,
    finished: Condvar,
}

/// Commits are numbered from 1 in the order in which they start.
#[derive(Debug, Default)]
struct State {
    started: u64,
    finished: u64,
    /// The newest commit that failed, and why. The kernel reports a lost write to one `syncfs`
    /// only.
    failure: Option<(u64, i32)>,
}

impl GroupCommit {
    /// Returns once a `sync` that started after this call has finished. Blocks.
    ///
    /// # Errors
    /// That of a `sync` which started after this call.
    pub(super) fn run(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        let wanted = state.started + 1;
        while state.finished < wanted {
            if state.started == state.finished {
                state.started = wanted;
                drop(state);
                let synced = sync();
                state = self.lock();
                state.finished = wanted;
                if let Err(error) = &synced {
                    state.failure = Some((wanted, error.raw_os_error().unwrap_or(libc::EIO)));
                }
                self.finished.notify_all();
                return synced;
            }
            self.finished.wait(&mut state);
        }
        match state.failure {
            Some((number, code)) if number >= wanted => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Waits until `count` callers have arrived.
    fn until_waiting(count: usize, arrived: &AtomicUsize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while arrived.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < deadline, "the callers do not arrive");
            thread::yield_now();
        }
    }

    #[test]
    fn callers_that_arrive_during_a_commit_share_the_next_one() {
        let (group, syncs, arrived) = (GroupCommit::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let (started, has_started) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                group.run(move || {
                    started.send(()).expect("the test listens");
                    may_go.recv().expect("the test goes on");
                    Err(io::Error::from_raw_os_error(libc::ENOSPC))
                })
            });
            has_started.recv().expect("the first commit runs");
            let others: Vec<_> = (0..20)
                .map(|_| {
                    scope.spawn(|| {
                        arrived.fetch_add(1, Ordering::SeqCst);
                        group.run(|| {
                            syncs.fetch_add(1, Ordering::SeqCst);
                            Ok(())
                        })
                    })
                })
                .collect();
            until_waiting(20, &arrived);
            go.send(()).expect("the first commit waits");
            assert!(first.join().expect("no panic").is_err());
            for other in others {
                other.join().expect("no panic").expect("the failure was before it came, or of the commit before");
            }
        });
        // A caller that was not yet inside when the first commit ended starts one of its own.
        assert!((1..=20).contains(&syncs.load(Ordering::SeqCst)));
        let state = group.lock();
        assert_eq!(state.started, state.finished);
    }

    #[test]
    fn a_failed_commit_fails_its_callers_and_no_later_one() {
        let group = GroupCommit::default();
        let failed = group.run(|| Err(io::Error::from_raw_os_error(libc::EIO)));
        assert_eq!(failed.expect_err("it failed").raw_os_error(), Some(libc::EIO));
        group.run(|| Ok(())).expect("a later commit is its own");
    }
}
