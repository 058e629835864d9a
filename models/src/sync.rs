//! `tokio::sync` as far as the modelled files use it.

use std::sync::PoisonError;
use std::task::{Poll, Waker};

use loom::sync::{Mutex, MutexGuard};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes one waiter, or the next one if none waits; or all that wait.
#[derive(Debug, Default)]
pub struct Notify(Mutex<Notification>);

#[derive(Debug, Default)]
struct Notification {
    is_stored: bool,
    /// How often all were woken.
    rounds: usize,
    waiters: Vec<Waker>,
}

impl Notify {
    pub fn notify_one(&self) {
        let waiters = {
            let mut state = lock(&self.0);
            state.is_stored = true;
            std::mem::take(&mut state.waiters)
        };
        // The first that runs takes it, the others wait again.
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Wakes also those whose future was made and not polled yet, as tokio does.
    pub fn notify_waiters(&self) {
        let waiters = {
            let mut state = lock(&self.0);
            state.rounds += 1;
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }

    pub fn notified(&self) -> impl Future<Output = ()> + '_ {
        let rounds = lock(&self.0).rounds;
        std::future::poll_fn(move |context| {
            let mut state = lock(&self.0);
            if state.rounds != rounds || std::mem::take(&mut state.is_stored) {
                return Poll::Ready(());
            }
            state.waiters.push(context.waker().clone());
            Poll::Pending
        })
    }
}
