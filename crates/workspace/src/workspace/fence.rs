//! The fence around a sandbox: many may be inside at a time, and nobody comes in while it is closed.
//!
//! ```text
//! enter ──► inside ──► drop          close ──► the ones inside leave, or their time is over ──► work ──► drop opens it
//! ```
//! Invariant: whoever closes it is alone until it opens again; those who came before are counted until they leave.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, Default)]
struct State {
    closed: bool,
    inside: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Fence {
    state: Arc<watch::Sender<State>>,
}

/// Somebody is inside. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Ticket {
    state: Arc<watch::Sender<State>>,
}

/// Nobody comes in. Dropping it opens the fence.
#[derive(Debug)]
pub(super) struct Closed {
    state: Arc<watch::Sender<State>>,
}

impl Fence {
    pub(super) fn new() -> Self {
        Self { state: Arc::new(watch::Sender::new(State::default())) }
    }

    /// Goes inside, once it is open. None when it does not open in time.
    pub(super) async fn enter(&self, patience: Duration) -> Option<Ticket> {
        let mut changes = self.state.subscribe();
        let opened = tokio::time::timeout(patience, async {
            loop {
                let came_in = self.state.send_if_modified(|state| {
                    let open = !state.closed;
                    state.inside += usize::from(open);
                    open
                });
                if came_in || changes.wait_for(|state| !state.closed).await.is_err() {
                    return came_in;
                }
            }
        });
        matches!(opened.await, Ok(true)).then(|| Ticket { state: Arc::clone(&self.state) })
    }

    /// Lets nobody in any more. Whoever calls this has the workspace's turn, so that there is one at a time.
    pub(super) fn close(&self) -> Closed {
        self.state.send_modify(|state| state.closed = true);
        Closed { state: Arc::clone(&self.state) }
    }

    #[cfg(test)]
    fn inside(&self) -> usize {
        self.state.borrow().inside
    }
}

impl Closed {
    /// Waits until nobody is inside, and says how many still are when the time is over.
    pub(super) async fn emptied(&self, patience: Duration) -> usize {
        let mut changes = self.state.subscribe();
        let empty = changes.wait_for(|state| state.inside == 0);
        let _ = tokio::time::timeout(patience, empty).await;
        self.state.borrow().inside
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.inside -= 1);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.closed = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn nobody_comes_in_while_it_is_closed() {
        let fence = Fence::new();
        let (first, second) = (fence.enter(LONG).await, fence.enter(LONG).await);
        assert_eq!(fence.inside(), 2);
        let closed = fence.close();
        assert!(fence.enter(LONG).await.is_none(), "it stays closed");
        assert_eq!(closed.emptied(LONG).await, 2, "they do not leave");
        drop(first);
        assert_eq!(closed.emptied(Duration::ZERO).await, 1);
        let waiting = tokio::spawn({
            let fence = fence.clone();
            async move { fence.enter(LONG).await.is_some() }
        });
        drop(second);
        assert_eq!(closed.emptied(LONG).await, 0);
        drop(closed);
        assert!(waiting.await.expect("it ends"), "it opened");
        assert_eq!(fence.inside(), 0);
    }
}
