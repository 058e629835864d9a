//! The sandbox gate: many operations may be inside at a time, and none enters while it is closed.
//!
//! ```text
//! enter ─► inside ─► drop      close ─► those inside leave, or time out ─► work ─► drop opens it
//! ```
//! Invariant: the caller that closed it is alone until it opens again; operations that entered
//! before are counted until they leave.

use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;

#[derive(Debug, Clone, Copy, Default)]
struct State {
    closed: bool,
    inside: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes all that wait, in the order in which they came.
    changed: Notify,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `check` holds after a change, or at once.
    async fn wait_until(&self, mut check: impl FnMut(&mut State) -> bool) {
        loop {
            // Made before the check, so that it sees every later change.
            let changed = self.changed.notified();
            if check(&mut self.state()) {
                return;
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }
}

#[derive(Debug, Clone)]
pub(super) struct SandboxGate {
    shared: Arc<Shared>,
}

/// An operation inside the gate. Dropping it leaves.
#[derive(Debug)]
pub(super) struct Permit {
    shared: Arc<Shared>,
}

/// The closed gate. Dropping it opens the gate.
#[derive(Debug)]
pub(super) struct ClosedGate {
    shared: Arc<Shared>,
}

impl SandboxGate {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Enters once the gate is open; [`None`] on timeout.
    pub(super) async fn enter(&self, timeout: Duration) -> Option<Permit> {
        let entered = self.shared.wait_until(|state| {
            state.inside += usize::from(!state.closed);
            !state.closed
        });
        tokio::time::timeout(timeout, entered).await.ok()?;
        Some(Permit { shared: Arc::clone(&self.shared) })
    }

    /// Closes the gate. The caller holds the operation lock, so there is one at a time.
    pub(super) fn close(&self) -> ClosedGate {
        self.shared.change(|state| state.closed = true);
        ClosedGate { shared: Arc::clone(&self.shared) }
    }

    #[cfg(test)]
    fn inside(&self) -> usize {
        self.shared.state().inside
    }
}

impl ClosedGate {
    /// Waits until no operation is inside, and returns how many still are on timeout.
    pub(super) async fn drain(&self, timeout: Duration) -> usize {
        let _ = tokio::time::timeout(timeout, self.shared.wait_until(|state| state.inside == 0)).await;
        self.shared.state().inside
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.change(|state| state.inside -= 1);
    }
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        self.shared.change(|state| state.closed = false);
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
