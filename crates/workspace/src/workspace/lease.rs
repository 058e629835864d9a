//! The right of this process to act on a workspace: taken with patience, renewed by a task, and
//! taken again after another process had it.
//!
//! Invariant: when the lease has run out and could not be renewed, nothing more is done here, since
//! another process may have taken over. The records refuse what carries an older lease in any case;
//! this keeps us from touching the sandbox.
//!
//! Whether a lease holds is not left to the wall clock alone, which can be set:
//!
//! - This process measures its own lease by the steady clock as well, and asks the records again
//!   after the wall clock was set.
//! - A lease of a process that is gone, or of an earlier boot of this machine, is void at once.
//! - A lease that ends later than a new one would was written under a clock that was ahead. It is
//!   void at once where clocks that run cannot differ by so much; else, or if its process is seen
//!   to run, when it was not renewed for its length.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::chain::chain;
use crate::clock::{Clock, later};
use crate::house::{House, SeenLease};
use crate::name::WorkspaceName;
use crate::process::{self, CLOCK_SKEW, Liveness};
use crate::records::{Lease, LeaseError};
use crate::settings::Settings;

/// A clock that is slewed differs by a few milliseconds within a lease. Two jumps that cancel each
/// other out to within this, with another process that takes the lease between them, are not
/// noticed before the next renewal.
const JUMP: SignedDuration = SignedDuration::from_millis(50);
const ASK_AGAIN: Duration = Duration::from_millis(50);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_millis(500);

/// The lease, and whether it still holds.
pub(crate) struct Holding {
    house: Arc<House>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
struct State {
    lease: Lease,
    /// When it was written, by both clocks.
    written: Moment,
    lost: bool,
    /// Why the last renewal failed, as the records said.
    refusal: Option<String>,
}

/// A moment by the wall clock and by the steady one.
#[derive(Debug, Clone, Copy)]
struct Moment {
    wall: Timestamp,
    steady: Duration,
}

impl Moment {
    fn now(clock: &Clock) -> Self {
        Self { wall: clock.now(), steady: clock.steady() }
    }

    /// Whether the wall clock was set since an earlier moment.
    fn has_jumped_since(self, before: Self) -> bool {
        let steady = SignedDuration::try_from(self.steady.saturating_sub(before.steady)).unwrap_or(SignedDuration::MAX);
        (self.wall.duration_since(before.wall) - steady).abs() > JUMP
    }
}

impl Holding {
    /// Takes the lease, or waits for who has it.
    pub(crate) async fn take(house: Arc<House>, name: &WorkspaceName, wait: Duration) -> Result<Self, LeaseError> {
        let state = watch::Sender::new(house.acquire(name, wait).await?);
        Ok(Self { house, state })
    }

    /// Takes it again after it was lost: a new one, with a higher number. Only with the turn, so
    /// that nothing that was begun under the old one goes on under this.
    pub(crate) async fn take_again(&self, wait: Duration) -> Result<(), LeaseError> {
        let name = self.lease().workspace;
        let state = self.house.acquire(&name, wait).await?;
        self.state.send_replace(state);
        Ok(())
    }

    pub(crate) fn lease(&self) -> Lease {
        self.state.borrow().lease.clone()
    }

    /// Whether no other process can have the workspace. A lease that has run out while this process
    /// slept is renewed, if it still can be.
    pub(crate) async fn holds(&self) -> bool {
        if self.has_run_out() && !self.is_lost() {
            self.renew().await;
        }
        !self.is_lost() && !self.has_run_out()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    /// Why the records refused the last renewal; [`None`] when it succeeded or another process has
    /// the lease.
    pub(super) fn refusal(&self) -> Option<String> {
        let state = self.state.borrow();
        if state.lost { None } else { state.refusal.clone() }
    }

    fn has_run_out(&self) -> bool {
        let (Settings { clock, lease, .. }, state) = (&self.house.settings, self.state.borrow());
        let now = Moment::now(clock);
        // While the wall clock was ahead, another process may have taken a lease that had run out
        // by it.
        now.steady >= state.written.steady + *lease
            || now.wall >= state.lease.until
            || now.has_jumped_since(state.written)
    }

    pub(crate) fn lose(&self) {
        self.state.send_modify(|state| state.lost = true);
    }

    /// Renews it while it is not lost. Ends with the task that runs it.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::time::sleep(self.house.settings.lease / 3).await;
            if !self.is_lost() {
                self.renew().await;
            }
        }
    }

    /// Renews it until it is lost.
    pub(crate) async fn keep_until_lost(&self) {
        let mut changes = self.state.subscribe();
        tokio::select! {
            () = self.keep() => {}
            _ = changes.wait_for(|state| state.lost) => {}
        }
    }

    async fn renew(&self) {
        let House { records, settings, .. } = &*self.house;
        let written = Moment::now(&settings.clock);
        match records.renew_lease(&self.lease(), written.wall, settings.lease).await {
            Ok(lease) => self.state.send_modify(|state| {
                state.lease = lease;
                state.written = written;
                state.refusal = None;
            }),
            Err(LeaseError::Lost(name)) => {
                warn!(workspace = %name, "the lease was lost to another process");
                self.lose();
            }
            // Until it runs out there is time to try again.
            Err(error) => {
                let reason = chain(&error);
                warn!(error = %reason, "the lease was not renewed");
                self.state.send_modify(|state| state.refusal = Some(reason));
            }
        }
    }

    /// Gives it back.
    pub(crate) async fn release(&self) {
        self.lose();
        if let Err(error) = self.house.records.release_lease(&self.lease()).await {
            debug!(%error, "the lease runs out by itself");
        }
    }
}

impl House {
    async fn acquire(&self, name: &WorkspaceName, wait: Duration) -> Result<State, LeaseError> {
        let Self { records, settings, owner, .. } = self;
        let deadline = tokio::time::Instant::now() + wait;
        let mut pause = ASK_AGAIN;
        loop {
            let written = Moment::now(&settings.clock);
            match records.take_lease(name, owner, written.wall, settings.lease).await {
                Ok(lease) => return Ok(State { lease, written, lost: false, refusal: None }),
                Err(LeaseError::Held { workspace, owner, fence, until }) => {
                    let held = Lease { workspace, owner, fence, until };
                    if let Some(why) = self.is_void(&held) {
                        let owner = process::for_people(&held.owner);
                        info!(workspace = %name, owner, %until, "its lease is taken over: {why}");
                        records.break_lease(&held).await?;
                    } else if tokio::time::Instant::now() < deadline {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(ASK_AGAIN_AT_MOST);
                    } else {
                        let Lease { workspace, owner, fence, until } = held;
                        return Err(LeaseError::Held { workspace, owner, fence, until });
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Why a lease that another process is said to have holds nothing.
    fn is_void(&self, held: &Lease) -> Option<&'static str> {
        let (clock, length) = (&self.settings.clock, self.settings.lease);
        let alive = match (self.liveness)(&held.owner) {
            Liveness::Gone => return Some("its process is gone"),
            Liveness::Alive => true,
            Liveness::Unknown => false,
        };
        let latest = later(clock.now(), length);
        if held.until <= latest {
            self.seen_leases.lock().unwrap_or_else(PoisonError::into_inner).remove(&held.workspace);
            return None;
        }
        if !alive && held.until > later(latest, CLOCK_SKEW) {
            return Some("it was written under a clock that was ahead");
        }
        let now = clock.steady();
        let mut seen = self.seen_leases.lock().unwrap_or_else(PoisonError::into_inner);
        let first = SeenLease { fence: held.fence, until: held.until, since: now };
        let known = seen.entry(held.workspace.clone()).or_insert(first);
        if (known.fence, known.until) != (held.fence, held.until) {
            *known = first;
        }
        (now.saturating_sub(known.since) >= length).then_some("it was not renewed")
    }
}
