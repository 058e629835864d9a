//! The guest's own exit: when the lease has expired and no server renewed it, or paused the
//! sandbox, within its grace.
//!
//! A lease ends at a wall-clock time and is measured by the monotonic clock, so that a jump of the
//! wall clock ends nothing. The grace counts only running time: a sandbox thawed long after its
//! lease must be able to receive a new one first.

use std::sync::Arc;
use std::time::Duration;

use protocol::guest::{LEASE_GRACE_SECONDS, Lease};
use tokio::time::{Instant, sleep};

use crate::log::unix_ms;
use crate::state::Guest;

/// Wakeup interval of a lease without an end.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// A lease, by the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseEnd {
    /// [`None`]: no end.
    at: Option<Instant>,
    grace_seconds: u32,
}

impl From<Lease> for LeaseEnd {
    fn from(lease: Lease) -> Self {
        let at = lease.ends_unix_ms.map(|ends| {
            let left = Duration::from_millis(ends.saturating_sub(unix_ms()));
            // A time beyond the clock's range counts as never.
            Instant::now().checked_add(left)
        });
        Self { at: at.flatten(), grace_seconds: lease.grace_seconds.unwrap_or(LEASE_GRACE_SECONDS) }
    }
}

/// Returns when the sandbox must end.
pub(crate) async fn wait_until_expired(guest: Arc<Guest>) {
    let mut lease = guest.lease.subscribe();
    let mut waited = 0;
    loop {
        let LeaseEnd { at, grace_seconds } = *lease.borrow_and_update();
        let wait = match at.map(|at| at.saturating_duration_since(Instant::now())) {
            None => MAX_SLEEP,
            Some(Duration::ZERO) if waited >= grace_seconds => return,
            Some(Duration::ZERO) => {
                waited += 1;
                Duration::from_secs(1)
            }
            Some(left) => {
                waited = 0;
                left
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            // The guest holds the sender, so this only means a new lease.
            _ = lease.changed() => waited = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::guest::GuestConfig;
    use tokio::time::timeout;

    use super::*;

    fn guest(ends_unix_ms: u64, lease_grace_seconds: Option<u32>) -> Arc<Guest> {
        let config =
            GuestConfig { lease_ends_unix_ms: Some(ends_unix_ms), lease_grace_seconds, ..GuestConfig::default() };
        Guest::new(config, String::new(), Path::new("/etc"))
    }

    #[tokio::test(start_paused = true)]
    async fn the_guest_ends_a_grace_after_the_lease() {
        for (grace, expected) in [(None, LEASE_GRACE_SECONDS), (Some(43_200), 43_200)] {
            let begun = Instant::now();
            wait_until_expired(guest(unix_ms() - 60_000, grace)).await;
            assert_eq!(begun.elapsed().as_secs(), u64::from(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_at_the_last_moment_is_honoured() {
        let guest = guest(unix_ms() - 60_000, None);
        let ending = tokio::spawn(wait_until_expired(guest.clone()));
        sleep(Duration::from_secs(u64::from(LEASE_GRACE_SECONDS) - 1)).await;
        guest.lease.send_replace(LeaseEnd::from(Lease::default()));
        assert!(timeout(Duration::from_secs(100_000), ending).await.is_err(), "it lives without a lease");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_wall_clock_does_not_delay_the_end() {
        // The wall clock does not advance in this test, as after it was set back; the lease still
        // ends.
        let begun = Instant::now();
        wait_until_expired(guest(unix_ms() + 60_000, Some(0))).await;
        let elapsed = begun.elapsed();
        assert!((59..=60).contains(&elapsed.as_secs()), "{elapsed:?}");
    }
}
