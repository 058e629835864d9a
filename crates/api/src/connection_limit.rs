//! Limits of client connections: in total, and per address.
//!
//! All clients on this machine share one address, and so do all clients of a proxy on it: loopback
//! is limited by the total only, and the last eighth of the total is reserved for it. So remote
//! clients cannot lock out programs on this machine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// One in this many connections is reserved for loopback.
const RESERVED_FRACTION: usize = 8;
/// Providers assign at least this prefix of an IPv6 address to a customer, who chooses the rest.
const CUSTOMER_BITS: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub(crate) total: usize,
    pub(crate) per_address: usize,
}

pub(crate) struct ConnectionLimiter {
    limits: ConnectionLimits,
    counts: Mutex<ConnectionCounts>,
}

#[derive(Default)]
struct ConnectionCounts {
    total: usize,
    /// Connections per address, except for loopback.
    by_address: HashMap<IpAddr, usize>,
}

impl ConnectionLimiter {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Returns a permit for a connection from `peer`, if the limits allow one.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPermit> {
        let ConnectionLimits { total, per_address } = self.limits;
        let peer = limited_address(peer);
        let mut counts = self.counts();
        let limit = if peer.is_some() { total - total / RESERVED_FRACTION } else { total };
        if counts.total >= limit {
            return None;
        }
        if let Some(peer) = peer {
            let count = counts.by_address.get(&peer).copied().unwrap_or(0);
            if count >= per_address {
                return None;
            }
            counts.by_address.insert(peer, count + 1);
        }
        counts.total += 1;
        Some(ConnectionPermit { limiter: Arc::clone(self), peer })
    }

    fn counts(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.counts.lock()
    }
}

/// The address that counts: that of an IPv4 peer, the network of an IPv6 peer, `None` for loopback.
fn limited_address(peer: IpAddr) -> Option<IpAddr> {
    let peer = peer.to_canonical();
    match peer {
        _ if peer.is_loopback() => None,
        IpAddr::V4(_) => Some(peer),
        IpAddr::V6(address) => {
            Some(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - CUSTOMER_BITS))).into())
        }
    }
}

/// The permit of one connection, which is released on drop.
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    peer: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts();
        counts.total -= 1;
        if let Some(Entry::Occupied(mut entry)) = self.peer.map(|peer| counts.by_address.entry(peer)) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(limiter: &Arc<ConnectionLimiter>, peer: &str) -> Vec<ConnectionPermit> {
        let peer = peer.parse().expect("an address");
        std::iter::from_fn(|| limiter.take(peer)).collect()
    }

    #[test]
    fn limits_leave_connections_for_other_addresses_and_loopback() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 80, per_address: 40 });
        let first = fill(&limiter, "203.0.113.1");
        assert_eq!(first.len(), 40);
        let second = fill(&limiter, "203.0.113.2");
        assert_eq!(second.len(), 30, "the last eighth is not for strangers");
        assert!(fill(&limiter, "203.0.113.3").is_empty());
        assert_eq!(fill(&limiter, "127.0.0.1").len(), 10);
        let local = fill(&limiter, "::ffff:127.0.0.1");
        assert_eq!(local.len(), 10);
        drop((first, second, local));
        assert_eq!(fill(&limiter, "127.0.0.2").len(), 80, "loopback has no limit of its own");
        assert!(limiter.counts().by_address.is_empty(), "nothing is remembered of addresses that have gone");
        assert_eq!(limiter.counts().total, 0);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let limiter = ConnectionLimiter::new(ConnectionLimits { total: 80, per_address: 4 });
        let all = fill(&limiter, "2001:db8:1:2::1");
        assert!(limiter.take("2001:db8:1:2:ffff::9".parse().expect("an address")).is_none());
        assert!(limiter.take("2001:db8:1:3::1".parse().expect("an address")).is_some());
        assert_eq!(all.len(), 4);
    }
}
