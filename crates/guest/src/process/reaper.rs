//! Reaps every child, as process 1 must: the guest's own and adopted orphans. No other code waits,
//! so no status is lost.

use std::io;
use std::sync::Arc;

use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::Exit;
use crate::state::Guest;

/// Reaps for the guest's lifetime.
pub(crate) async fn reap(guest: Arc<Guest>) -> io::Result<()> {
    let mut child_changed = signal(SignalKind::child())?;
    loop {
        // SIGCHLD merges: one signal may stand for many children, and the first round reaps earlier
        // ones.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if status.exited() || status.signaled() {
                guest.processes.record_exit(pid.as_raw_pid().unsigned_abs(), Exit::from(status));
            }
        }
        if child_changed.recv().await.is_none() {
            return Ok(());
        }
    }
}
