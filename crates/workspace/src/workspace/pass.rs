//! A way into the sandbox that is good as long as it is held: nobody replaces the sandbox meanwhile without having waited
//! for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sdk::Sandbox;
use tokio::time::Instant;

use super::core::Core;
use super::error::Unavailable;
use super::fence::Ticket;
use super::wake::{BroughtBack, Woken};

/// Tries to find the sandbox ready, between which somebody else may pause it again.
const TRIES: usize = 5;

/// Somebody works in a workspace. Dropping it leaves.
pub struct Pass {
    core: Arc<Core>,
    sandbox: Sandbox,
    epoch: u64,
    resumed: bool,
    brought_back: Option<Arc<BroughtBack>>,
    waited: Duration,
    _ticket: Ticket,
}

impl Pass {
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Changes with every new sandbox: what was known of processes and of files outside the saved directory is void then.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What did not survive a change of sandbox, one line each. Each is told once to whoever asks without a name.
    pub fn notices(&self) -> Vec<String> {
        self.notices_for("")
    }

    /// The same for one of many who work here: each is told once to every reader.
    pub fn notices_for(&self, reader: &str) -> Vec<String> {
        self.core.tell_reader(reader)
    }

    /// The workspace was paused, or without a sandbox, before this.
    pub fn was_resumed(&self) -> bool {
        self.resumed
    }

    /// The files are those of a snapshot, instead of the sandbox's own, since this pass was asked for.
    pub fn brought_back(&self) -> Option<&Arc<BroughtBack>> {
        self.brought_back.as_ref()
    }

    /// For the fence to open and the sandbox to wake.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Says that the sandbox did not answer as a living one does: before the next pass is given, the provider is asked.
    pub fn doubt(&self) {
        if self.core.is_ready().is_some_and(|(_, epoch)| epoch == self.epoch) {
            self.core.detach();
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.core.touched.store(true, Ordering::Release);
        self.core.unsaved.store(true, Ordering::Release);
        self.core.changed.notify_one();
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("sandbox", &self.sandbox).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Core {
    /// Waits while the sandbox is being replaced, wakes it if need be, and lets the caller in. Where everything is as it
    /// should be, this asks nobody.
    pub(super) async fn enter(self: &Arc<Self>) -> Result<Pass, Unavailable> {
        let started = Instant::now();
        let mut resumed = false;
        let mut brought_back = None;
        for _ in 0..TRIES {
            if let Err(error) = self.check().await {
                // With the turn comes a lease that was lost, if it is free.
                drop(self.turn().await);
                self.check().await.map_err(|_| error)?;
            }
            let patience = self.settings().fence_wait;
            let Some(ticket) = self.fence.enter(patience).await else {
                return Err(Unavailable::Busy { workspace: self.name.clone(), after: patience });
            };
            if let Some((attached, epoch)) = self.is_ready() {
                let (core, sandbox) = (Arc::clone(self), attached.sandbox);
                let waited = started.elapsed();
                return Ok(Pass { core, sandbox, epoch, resumed, brought_back, waited, _ticket: ticket });
            }
            drop(ticket);
            let turn = self.turn().await;
            if self.is_ready().is_none() {
                let woken = self.wake(&turn).await?;
                resumed |= !matches!(woken, Woken::Attached);
                brought_back = woken.brought_back().or(brought_back);
            }
        }
        Err(Unavailable::Busy { workspace: self.name.clone(), after: started.elapsed() })
    }
}
