//! The lease of this process on a workspace: waited for, renewed by a task, and retaken after
//! another process had it.
//!
//! Invariant: when the lease has expired and could not be renewed, this process does nothing more,
//! since another may have taken over. The records reject writes under an older lease in any case;
//! this invariant also protects the sandbox.
//!
//! The validity of a lease does not depend on the wall clock alone, which can be set:
//!
//! - This process also measures its own lease by the monotonic clock, and asks the records again
//!   after the wall clock was set.
//! - A lease of a process that has exited, or of an earlier boot of this machine, is void at once.
//! - A lease that ends later than a new one would was written under a clock that was ahead. It is
//!   void at once if clocks in use cannot differ by so much; else, or if its process runs, once it
//!   was not renewed for its length.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::clock::{Clock, later};
use crate::context::{SeenLease, WorkspaceContext};
use crate::name::WorkspaceName;
use crate::process::{self, CLOCK_SKEW, Liveness};
use crate::records::{Lease, LeaseError};
use crate::settings::Settings;
use text::error_chain;

/// A clock that is slewed differs by a few milliseconds within a lease. Two jumps that cancel out
/// to within this, with another process taking the lease between them, go unnoticed until the next
/// renewal.
const JUMP: SignedDuration = SignedDuration::from_millis(50);
const ASK_AGAIN: Duration = Duration::from_millis(50);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_millis(500);

/// The lease, and whether it is still valid.
pub(crate) struct HeldLease {
    context: Arc<WorkspaceContext>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
struct State {
    lease: Lease,
    /// When it was written, by both clocks.
    written: Moment,
    lost: bool,
    /// Why the records rejected the last renewal.
    renewal_error: Option<String>,
}

/// A moment by the wall clock and by the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Moment {
    wall: Timestamp,
    monotonic: Duration,
}

impl Moment {
    fn now(clock: &Clock) -> Self {
        Self { wall: clock.now(), monotonic: clock.monotonic() }
    }

    /// Whether the wall clock was set since an earlier moment.
    fn has_jumped_since(self, before: Self) -> bool {
        let monotonic =
            SignedDuration::try_from(self.monotonic.saturating_sub(before.monotonic)).unwrap_or(SignedDuration::MAX);
        (self.wall.duration_since(before.wall) - monotonic).abs() > JUMP
    }
}

impl HeldLease {
    /// Takes the lease, waiting for its holder.
    pub(crate) async fn take(
        context: Arc<WorkspaceContext>,
        name: &WorkspaceName,
        wait: Duration,
    ) -> Result<Self, LeaseError> {
        let state = watch::Sender::new(context.acquire(name, wait).await?);
        Ok(Self { context, state })
    }

    /// Takes a new lease, with a higher fencing number, after the old one was lost. The caller
    /// holds the operation lock, so that no operation under the old lease continues under this one.
    pub(crate) async fn retake(&self, wait: Duration) -> Result<(), LeaseError> {
        let name = self.lease().workspace;
        let state = self.context.acquire(&name, wait).await?;
        self.state.send_replace(state);
        Ok(())
    }

    pub(crate) fn lease(&self) -> Lease {
        self.state.borrow().lease.clone()
    }

    /// Whether no other process can hold the workspace. A lease that expired while this process was
    /// suspended is renewed, if it still can be.
    pub(crate) async fn ensure_valid(&self) -> bool {
        if self.is_expired() && !self.is_lost() {
            self.renew().await;
        }
        !self.is_lost() && !self.is_expired()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    /// Why the records rejected the last renewal; [`None`] when it succeeded or another process has
    /// the lease.
    pub(super) fn renewal_error(&self) -> Option<String> {
        let state = self.state.borrow();
        if state.lost { None } else { state.renewal_error.clone() }
    }

    fn is_expired(&self) -> bool {
        let (Settings { clock, lease, .. }, state) = (&self.context.settings, self.state.borrow());
        let now = Moment::now(clock);
        // While the wall clock was ahead, another process may have taken a lease that had expired
        // by it.
        now.monotonic >= state.written.monotonic + *lease
            || now.wall >= state.lease.until
            || now.has_jumped_since(state.written)
    }

    pub(crate) fn lose(&self) {
        self.state.send_modify(|state| state.lost = true);
    }

    /// Renews it while it is not lost. Ends with the task that runs it.
    pub(crate) async fn renew_periodically(&self) {
        loop {
            tokio::time::sleep(self.context.settings.lease / 3).await;
            if !self.is_lost() {
                self.renew().await;
            }
        }
    }

    /// Renews it until it is lost.
    pub(crate) async fn renew_until_lost(&self) {
        let mut changes = self.state.subscribe();
        tokio::select! {
            biased;
            () = self.renew_periodically() => {}
            _ = changes.wait_for(|state| state.lost) => {}
        }
    }

    async fn renew(&self) {
        let WorkspaceContext { records, settings, .. } = &*self.context;
        let written = Moment::now(&settings.clock);
        match records.renew_lease(&self.lease(), written.wall, settings.lease).await {
            Ok(lease) => self.state.send_modify(|state| {
                state.lease = lease;
                state.written = written;
                state.renewal_error = None;
            }),
            Err(LeaseError::Lost(name)) => {
                warn!(workspace = %name, "the lease was lost to another process");
                self.lose();
            }
            // There is time to retry until it expires.
            Err(error) => {
                let reason = error_chain(&error);
                warn!(error = %reason, "the lease could not be renewed");
                self.state.send_modify(|state| state.renewal_error = Some(reason));
            }
        }
    }

    /// Releases it.
    pub(crate) async fn release(&self) {
        self.lose();
        if let Err(error) = self.context.records.release_lease(&self.lease()).await {
            debug!(%error, "the lease could not be released; it will expire");
        }
    }
}

impl WorkspaceContext {
    async fn acquire(&self, name: &WorkspaceName, wait: Duration) -> Result<State, LeaseError> {
        let Self { records, settings, owner, .. } = self;
        let deadline = tokio::time::Instant::now() + wait;
        let mut pause = ASK_AGAIN;
        loop {
            let written = Moment::now(&settings.clock);
            match records.take_lease(name, owner, written.wall, settings.lease).await {
                Ok(lease) => return Ok(State { lease, written, lost: false, renewal_error: None }),
                Err(LeaseError::Held { workspace, owner, fence, until }) => {
                    let held = Lease { workspace, owner, fence, until };
                    if let Some(why) = self.void_reason(&held) {
                        let owner = process::display_name(&held.owner);
                        info!(workspace = %name, owner, %until, "taking over its lease: {why}");
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

    /// Why a lease of another process is void, if it is.
    fn void_reason(&self, held: &Lease) -> Option<&'static str> {
        let (clock, length) = (&self.settings.clock, self.settings.lease);
        let alive = match (self.liveness)(&held.owner) {
            Liveness::Gone => return Some("its process is gone"),
            Liveness::Alive => true,
            Liveness::Unknown => false,
        };
        let latest = later(clock.now(), length);
        if held.until <= latest {
            self.seen_leases.lock().remove(&held.workspace);
            return None;
        }
        if !alive && held.until > later(latest, CLOCK_SKEW) {
            return Some("it was written under a clock that was ahead");
        }
        let now = clock.monotonic();
        let mut seen = self.seen_leases.lock();
        let first = SeenLease { fence: held.fence, until: held.until, since: now };
        let known = seen.entry(held.workspace.clone()).or_insert(first);
        if (known.fence, known.until) != (held.fence, held.until) {
            *known = first;
        }
        (now.saturating_sub(known.since) >= length).then_some("it was not renewed")
    }
}
