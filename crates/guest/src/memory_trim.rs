//! Returns memory to the kernel after large transfers.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::sys;

/// Long enough for connections to close and pool threads to end.
const TRIM_DELAY: Duration = Duration::from_secs(3);

/// Notified of work that allocated much memory.
#[derive(Default)]
pub(crate) struct MemoryTrimmer(Notify);

impl MemoryTrimmer {
    /// Schedules a trim after a large transfer.
    pub(crate) fn schedule(&self) {
        self.0.notify_one();
    }

    /// Trims memory for the guest's lifetime.
    pub(crate) async fn run(&self) {
        loop {
            self.0.notified().await;
            sleep(TRIM_DELAY).await;
            sys::return_memory();
        }
    }
}
