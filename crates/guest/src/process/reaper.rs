//! The first duty of process 1: every child is waited for, the guest's own and the orphans it inherits. It is the only
//! place that waits, so nobody's status is stolen.

use std::io;
use std::sync::Arc;

use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

use super::Exit;
use crate::state::Guest;

/// Reaps for as long as the guest lives.
pub(crate) async fn reap(guest: Arc<Guest>) -> io::Result<()> {
    let mut child_changed = signal(SignalKind::child())?;
    loop {
        // Signals merge: one may stand for many children, and the first round catches those that came before us.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if status.exited() || status.signaled() {
                guest.processes.exited(pid.as_raw_pid().unsigned_abs(), Exit::from(status));
            }
        }
        if child_changed.recv().await.is_none() {
            return Ok(());
        }
    }
}
