//! The queue of the thread pool: which thread runs a task, and when another thread is needed.
//!
//! Invariant: a task that is pushed is taken by a thread, and without delay while fewer threads run
//! than the limit allows. `models/` explores every order of the threads with loom.

use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    wake: Condvar,
    max_threads: usize,
}

struct State<T> {
    tasks: VecDeque<T>,
    idle: usize,
    threads: usize,
}

impl<T> Queue<T> {
    pub(super) fn new(max_threads: usize) -> Self {
        let state = State { tasks: VecDeque::new(), idle: 0, threads: 0 };
        Self { state: Mutex::new(state), wake: Condvar::new(), max_threads }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task, and with `start` a thread if none is idle for it.
    pub(super) fn push(&self, task: T, start: impl FnOnce() -> io::Result<()>) {
        let mut state = self.lock();
        state.tasks.push_back(task);
        if state.idle < state.tasks.len() && state.threads < self.max_threads {
            // At the sandbox's process limit the existing threads run the queue.
            state.threads += usize::from(start().is_ok());
        }
        self.wake.notify_one();
    }

    /// Adds a thread, which calls [`Queue::next`] until that returns [`None`].
    pub(super) fn add_thread(&self, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.lock();
        start()?;
        state.threads += 1;
        Ok(())
    }

    /// The next task of a thread; [`None`] if it has been idle for too long and ends.
    pub(super) fn next(&self, idle_timeout: Option<Duration>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            state.idle += 1;
            let is_late;
            (state, is_late) = self.wait(state, idle_timeout);
            state.idle -= 1;
            if is_late && state.tasks.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }

    /// Waits for a task, and returns whether the time is over.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State<T>>,
        timeout: Option<Duration>,
    ) -> (MutexGuard<'a, State<T>>, bool) {
        match timeout {
            None => (self.wake.wait(state).unwrap_or_else(PoisonError::into_inner), false),
            // A model has no time: the thread is late whenever it runs again.
            #[cfg(loom)]
            Some(_) => {
                drop(state);
                loom::thread::yield_now();
                (self.lock(), true)
            }
            #[cfg(not(loom))]
            Some(timeout) => {
                let (state, wait) = self.wake.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner);
                (state, wait.timed_out())
            }
        }
    }
}
