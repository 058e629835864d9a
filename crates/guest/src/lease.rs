//! The guest's own end: when the lease ran out and nobody renewed it, the server is gone, and the sandbox follows.
//!
//! The grace is counted while awake. A sandbox thawed long after its lease must hear of the new one before it judges.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::log::unix_ms;
use crate::state::Guest;

/// The server normally acts first; this is for when there is none.
const GRACE_SECONDS: u32 = 30;
/// The wall clock may be set; look at it again at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Returns when the sandbox must end.
pub(crate) async fn run_out(guest: Arc<Guest>) {
    let mut lease = guest.lease.subscribe();
    let mut grace = GRACE_SECONDS;
    loop {
        let ends = *lease.borrow_and_update();
        let wait = match ends.map(|ends| Duration::from_millis(ends.saturating_sub(unix_ms()))) {
            None => LONGEST_SLEEP,
            Some(Duration::ZERO) if grace == 0 => return,
            Some(Duration::ZERO) => {
                grace -= 1;
                Duration::from_secs(1)
            }
            Some(left) => {
                grace = GRACE_SECONDS;
                left.min(LONGEST_SLEEP)
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            // The guest holds the sender, so a change is the only news.
            _ = lease.changed() => grace = GRACE_SECONDS,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::guest::GuestConfig;
    use tokio::time::{Instant, timeout};

    use super::*;

    fn guest(lease_ends_unix_ms: Option<u64>) -> Arc<Guest> {
        let config = GuestConfig { lease_ends_unix_ms, ..GuestConfig::default() };
        Guest::new(config, String::new(), Path::new("/etc"))
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_comes_a_grace_after_the_lease() {
        let begun = Instant::now();
        run_out(guest(Some(unix_ms() - 60_000))).await;
        assert_eq!(begun.elapsed().as_secs(), u64::from(GRACE_SECONDS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_at_the_last_moment_counts() {
        let guest = guest(Some(unix_ms() - 60_000));
        let ending = tokio::spawn(run_out(guest.clone()));
        sleep(Duration::from_secs(u64::from(GRACE_SECONDS) - 1)).await;
        guest.lease.send_replace(None);
        assert!(timeout(Duration::from_secs(100_000), ending).await.is_err(), "it lives without a lease");
    }
}
