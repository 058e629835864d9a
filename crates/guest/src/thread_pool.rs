//! Thread pool for blocking work.
//!
//! The first thread starts with the guest and never ends; the others end when idle. A file thread
//! therefore exists even when the sandbox has reached its process limit: work is queued instead of
//! failing. Tokio's blocking pool ends all its threads when they idle, and panics when it cannot
//! start one.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::sys;

/// Idle timeout of all threads but the first, so that an idle guest has two threads.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit of concurrent file operations; each processes one batch and never waits for a client.
const MAX_THREADS: usize = 16;
/// File work needs little stack; the deepest is the removal of a tree.
const STACK_BYTES: usize = 512 * 1024;

type Task = Box<dyn FnOnce() + Send>;

/// The result of submitted work. An error means that the work panicked. Dropping it does not stop
/// the work.
pub(crate) type Job<T> = oneshot::Receiver<T>;

static POOL: Pool =
    Pool { state: Mutex::new(State { queue: VecDeque::new(), idle: 0, threads: 0 }), wake: Condvar::new() };

struct Pool {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    queue: VecDeque<Task>,
    idle: usize,
    threads: usize,
}

/// Starts the permanent thread. Call it once, before the first work.
pub(crate) fn start() -> io::Result<()> {
    POOL.add_thread(&mut POOL.lock(), None)
}

/// Runs `work` on a pool thread, inside the caller's runtime.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Job<T> {
    let (answer, job) = oneshot::channel();
    let runtime = Handle::current();
    POOL.submit(Box::new(move || {
        let _inside = runtime.enter();
        // The receiver may have been dropped.
        let _unwanted = answer.send(work());
    }));
    job
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&'static self, task: Task) {
        let mut state = self.lock();
        state.queue.push_back(task);
        if state.idle < state.queue.len() && state.threads < MAX_THREADS {
            // At the sandbox's process limit the existing threads run the queue.
            let _at_the_limit = self.add_thread(&mut state, Some(IDLE_TIMEOUT));
        }
        self.wake.notify_one();
    }

    fn add_thread(&'static self, state: &mut State, idle_timeout: Option<Duration>) -> io::Result<()> {
        thread::Builder::new().stack_size(STACK_BYTES).spawn(move || self.run_thread(idle_timeout))?;
        state.threads += 1;
        Ok(())
    }

    /// The loop of one thread.
    fn run_thread(&self, idle_timeout: Option<Duration>) {
        sys::block_signals();
        let mut state = self.lock();
        loop {
            while let Some(task) = state.queue.pop_front() {
                drop(state);
                // The receiver of a panicked task gets an error.
                let _panicked = catch_unwind(AssertUnwindSafe(task));
                state = self.lock();
            }
            state.idle += 1;
            let late = match idle_timeout {
                None => {
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                    false
                }
                Some(idle_timeout) => {
                    let (guard, wait) =
                        self.wake.wait_timeout(state, idle_timeout).unwrap_or_else(PoisonError::into_inner);
                    state = guard;
                    wait.timed_out()
                }
            };
            state.idle -= 1;
            if late && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
