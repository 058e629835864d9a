//! The sandbox gate: many operations may be inside at a time, and none enters while it is closed.
//!
//! ```text
//! enter ─► inside ─► drop      close ─► those inside leave, or time out ─► work ─► drop opens it
//! ```
//! Invariant: the caller that closed it is alone until it opens again; operations that entered
//! before are counted until they leave.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, Default)]
struct State {
    closed: bool,
    inside: usize,
}

#[derive(Debug, Clone)]
pub(super) struct SandboxGate {
    state: Arc<watch::Sender<State>>,
}

/// An operation inside the gate. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Permit {
    state: Arc<watch::Sender<State>>,
}

/// The closed gate. Dropping it opens the gate.
#[derive(Debug)]
pub(super) struct ClosedGate {
    state: Arc<watch::Sender<State>>,
}

impl SandboxGate {
    pub(super) fn new() -> Self {
        Self { state: Arc::new(watch::Sender::new(State::default())) }
    }

    /// Enters once the gate is open; [`None`] on timeout.
    pub(super) async fn enter(&self, timeout: Duration) -> Option<Permit> {
        let mut changes = self.state.subscribe();
        let opened = tokio::time::timeout(timeout, async {
            loop {
                let entered = self.state.send_if_modified(|state| {
                    let open = !state.closed;
                    state.inside += usize::from(open);
                    open
                });
                if entered || changes.wait_for(|state| !state.closed).await.is_err() {
                    return entered;
                }
            }
        });
        matches!(opened.await, Ok(true)).then(|| Permit { state: Arc::clone(&self.state) })
    }

    /// Closes the gate. The caller holds the operation lock, so there is one at a time.
    pub(super) fn close(&self) -> ClosedGate {
        self.state.send_modify(|state| state.closed = true);
        ClosedGate { state: Arc::clone(&self.state) }
    }

    #[cfg(test)]
    fn inside(&self) -> usize {
        self.state.borrow().inside
    }
}

impl ClosedGate {
    /// Waits until no operation is inside, and returns how many still are on timeout.
    pub(super) async fn drain(&self, timeout: Duration) -> usize {
        let mut changes = self.state.subscribe();
        let empty = changes.wait_for(|state| state.inside == 0);
        let _ = tokio::time::timeout(timeout, empty).await;
        self.state.borrow().inside
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.inside -= 1);
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.closed = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_admits_no_operation() {
        let gate = SandboxGate::new();
        let (first, second) = (gate.enter(LONG).await, gate.enter(LONG).await);
        assert_eq!(gate.inside(), 2);
        let closed = gate.close();
        assert!(gate.enter(LONG).await.is_none(), "it stays closed");
        assert_eq!(closed.drain(LONG).await, 2, "they do not leave");
        drop(first);
        assert_eq!(closed.drain(Duration::ZERO).await, 1);
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.enter(LONG).await.is_some() }
        });
        drop(second);
        assert_eq!(closed.drain(LONG).await, 0);
        drop(closed);
        assert!(waiting.await.expect("it ends"), "it opened");
        assert_eq!(gate.inside(), 0);
    }
}
