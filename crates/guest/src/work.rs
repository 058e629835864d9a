//! Work that blocks, away from the thread that serves everybody.
//!
//! The first thread starts with the guest and never ends, the others end when they idle. So there is a thread for
//! files even when the sandbox has used up its processes: work then waits its turn instead of failing. The runtime's
//! own pool ends all its threads when they idle, and panics when it cannot start one.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::sys;

/// Threads but the first end after this much idleness, so that an idle guest is two threads.
const LINGER: Duration = Duration::from_secs(2);
/// At most this many file operations at once; each lasts for one batch, never for a client.
const MOST_THREADS: usize = 16;
/// File work is shallow; the deepest is the removal of a tree.
const STACK: usize = 512 * 1024;

type Task = Box<dyn FnOnce() + Send>;

/// The result of work under way. An error: it was interrupted and has none. Dropping this does not stop the work.
pub(crate) type Job<T> = oneshot::Receiver<T>;

static POOL: Pool =
    Pool { state: Mutex::new(State { waiting: VecDeque::new(), idle: 0, threads: 0 }), wake: Condvar::new() };

struct Pool {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    waiting: VecDeque<Task>,
    idle: usize,
    threads: usize,
}

/// Starts the thread that stays. Call it once, before there is work.
pub(crate) fn prepare() -> io::Result<()> {
    POOL.add_thread(&mut POOL.lock(), None)
}

/// Does `work` on another thread, where it finds the runtime that it was started in.
pub(crate) fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Job<T> {
    let (answer, job) = oneshot::channel();
    let runtime = Handle::current();
    POOL.submit(Box::new(move || {
        let _inside = runtime.enter();
        // Nobody may want it any more.
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
        state.waiting.push_back(task);
        if state.idle < state.waiting.len() && state.threads < MOST_THREADS {
            // At the sandbox's limit of processes the threads that exist do it in turn.
            let _at_the_limit = self.add_thread(&mut state, Some(LINGER));
        }
        self.wake.notify_one();
    }

    fn add_thread(&'static self, state: &mut State, linger: Option<Duration>) -> io::Result<()> {
        thread::Builder::new().stack_size(STACK).spawn(move || self.work(linger))?;
        state.threads += 1;
        Ok(())
    }

    /// One thread's life.
    fn work(&self, linger: Option<Duration>) {
        sys::refuse_signals();
        let mut state = self.lock();
        loop {
            while let Some(task) = state.waiting.pop_front() {
                drop(state);
                // Whoever waits for a task that panicked learns that it was interrupted.
                let _panicked = catch_unwind(AssertUnwindSafe(task));
                state = self.lock();
            }
            state.idle += 1;
            let late = match linger {
                None => {
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                    false
                }
                Some(linger) => {
                    let (woken, wait) = self.wake.wait_timeout(state, linger).unwrap_or_else(PoisonError::into_inner);
                    state = woken;
                    wait.timed_out()
                }
            };
            state.idle -= 1;
            if late && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
