//! After large transfers the guest becomes small again.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::sys;

/// Long enough for connections to close and file threads to end.
const SETTLE: Duration = Duration::from_secs(3);

/// Told of work that needed memory.
#[derive(Default)]
pub(crate) struct Tidy(Notify);

impl Tidy {
    /// Something large passed; what it used can be given back soon.
    pub(crate) fn later(&self) {
        self.0.notify_one();
    }

    /// Gives memory back for as long as the guest lives.
    pub(crate) async fn run(&self) {
        loop {
            self.0.notified().await;
            sleep(SETTLE).await;
            sys::return_memory();
        }
    }
}
