//! The right of this process to act on a workspace: taken with patience, renewed by a task, and given up for good when
//! somebody else has it.
//!
//! Invariant: when the lease has run out and could not be renewed, nothing more is done here, since another process may
//! have taken over. The records refuse what carries an older lease in any case; this keeps us from touching the sandbox.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::process;
use crate::clock::Clock;
use crate::name::WorkspaceName;
use crate::records::{Lease, LeaseError, Records};
use crate::settings::Settings;

const ASK_AGAIN: Duration = Duration::from_millis(50);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_millis(500);

/// The lease, and whether it still holds.
pub(crate) struct Holding {
    records: Arc<dyn Records>,
    clock: Clock,
    time: Duration,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
struct State {
    lease: Lease,
    lost: bool,
}

impl Holding {
    /// Takes the lease, or waits for who has it.
    pub(crate) async fn take(
        records: Arc<dyn Records>,
        name: &WorkspaceName,
        settings: &Settings,
        wait: Duration,
    ) -> Result<Self, LeaseError> {
        let owner = process::this();
        let patience = tokio::time::Instant::now() + wait;
        let mut pause = ASK_AGAIN;
        let lease = loop {
            match records.take_lease(name, &owner, settings.clock.now(), settings.lease).await {
                Ok(lease) => break lease,
                Err(LeaseError::Held { owner: dead, .. }) if process::is_dead(&dead) => {
                    info!(workspace = %name, owner = process::for_people(&dead), "taken over: its process is no more");
                    records.break_lease(name, &dead).await?;
                }
                Err(LeaseError::Held { .. }) if tokio::time::Instant::now() < patience => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ASK_AGAIN_AT_MOST);
                }
                Err(error) => return Err(error),
            }
        };
        let state = watch::Sender::new(State { lease, lost: false });
        Ok(Self { records, clock: settings.clock.clone(), time: settings.lease, state })
    }

    pub(super) fn lease(&self) -> Lease {
        self.state.borrow().lease.clone()
    }

    /// Whether nobody else can have the workspace. One that has run out while this process slept is renewed, if it still
    /// can be.
    pub(super) async fn holds(&self) -> bool {
        if self.has_run_out() && !self.is_lost() {
            self.renew().await;
        }
        !self.is_lost() && !self.has_run_out()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    fn has_run_out(&self) -> bool {
        self.state.borrow().lease.until <= self.clock.now()
    }

    pub(super) fn lose(&self) {
        self.state.send_modify(|state| state.lost = true);
    }

    /// Renews it until it is lost. Ends with whoever spawned it.
    pub(crate) async fn keep(&self) {
        while !self.is_lost() {
            tokio::time::sleep(self.time / 3).await;
            self.renew().await;
        }
    }

    async fn renew(&self) {
        match self.records.renew_lease(&self.lease(), self.clock.now(), self.time).await {
            Ok(lease) => self.state.send_modify(|state| state.lease = lease),
            Err(LeaseError::Lost(name)) => {
                warn!(workspace = %name, "the lease was lost to another process");
                self.lose();
            }
            // Until it runs out there is time to try again.
            Err(error) => warn!(%error, "the lease was not renewed"),
        }
    }

    /// Gives it back.
    pub(crate) async fn release(&self) {
        self.lose();
        if let Err(error) = self.records.release_lease(&self.lease()).await {
            debug!(%error, "the lease runs out by itself");
        }
    }
}
