//! `tokio::sync` as far as the modelled files use it.

use std::sync::PoisonError;
use std::task::{Poll, Waker};

use loom::sync::{Mutex, MutexGuard};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes one waiter, or the next one if none waits.
#[derive(Debug, Default)]
pub struct Notify(Mutex<Notification>);

#[derive(Debug, Default)]
struct Notification {
    is_stored: bool,
    waiter: Option<Waker>,
}

impl Notify {
    pub fn notify_one(&self) {
        let waiter = {
            let mut state = lock(&self.0);
            state.is_stored = true;
            state.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    pub async fn notified(&self) {
        std::future::poll_fn(|context| {
            let mut state = lock(&self.0);
            if std::mem::take(&mut state.is_stored) {
                return Poll::Ready(());
            }
            state.waiter = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A value and those who wait for its changes.
pub mod watch {
    use std::ops::Deref;
    use std::sync::Arc;
    use std::task::{Poll, Waker};

    use loom::sync::{Mutex, MutexGuard};

    use super::lock;

    #[derive(Debug)]
    struct Shared<T> {
        value: T,
        waiters: Vec<Waker>,
    }

    #[derive(Debug)]
    pub struct Sender<T>(Arc<Mutex<Shared<T>>>);

    #[derive(Debug)]
    pub struct Receiver<T>(Arc<Mutex<Shared<T>>>);

    /// The sender is gone, which a model never has.
    #[derive(Debug)]
    pub struct RecvError;

    pub struct Ref<'a, T>(MutexGuard<'a, Shared<T>>);

    impl<T> Deref for Ref<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0.value
        }
    }

    impl<T> Sender<T> {
        pub fn new(value: T) -> Self {
            Self(Arc::new(Mutex::new(Shared { value, waiters: Vec::new() })))
        }

        pub fn subscribe(&self) -> Receiver<T> {
            Receiver(Arc::clone(&self.0))
        }

        pub fn borrow(&self) -> Ref<'_, T> {
            Ref(lock(&self.0))
        }

        /// Wakes the waiters if `modify` returns true.
        pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
            let waiters = {
                let mut shared = lock(&self.0);
                match modify(&mut shared.value) {
                    true => std::mem::take(&mut shared.waiters),
                    false => return false,
                }
            };
            waiters.into_iter().for_each(Waker::wake);
            true
        }

        pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
            self.send_if_modified(|value| {
                modify(value);
                true
            });
        }
    }

    impl<T> Receiver<T> {
        /// Waits until the value is as wanted.
        ///
        /// # Errors
        /// Never.
        pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<(), RecvError> {
            std::future::poll_fn(|context| {
                let mut shared = lock(&self.0);
                if wanted(&shared.value) {
                    return Poll::Ready(Ok(()));
                }
                shared.waiters.push(context.waker().clone());
                Poll::Pending
            })
            .await
        }
    }
}
