//! How many connections clients may have: altogether, and from one address.
//!
//! Clients on this machine all have one address, and so have all clients of a proxy on it: loopback is limited by the sum
//! alone, and the last eighth of the sum is kept for it. So strangers cannot keep the machine's own programs out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What part of all connections is kept for loopback.
const RESERVED: usize = 8;
/// A provider gives a customer at least this much of an IPv6 address, so its holder chooses the rest.
const CUSTOMER_BITS: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    pub(crate) altogether: usize,
    pub(crate) per_address: usize,
}

pub(crate) struct Places {
    limits: ConnectionLimits,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    altogether: usize,
    /// Of addresses that have any, loopback excepted.
    by_address: HashMap<IpAddr, usize>,
}

impl Places {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default() })
    }

    /// A place for a connection from `peer`, if one is left for it.
    pub(crate) fn take(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let ConnectionLimits { altogether, per_address } = self.limits;
        let peer = customer(peer);
        let mut taken = self.taken();
        let limit = if peer.is_some() { altogether - altogether / RESERVED } else { altogether };
        if taken.altogether >= limit {
            return None;
        }
        if let Some(peer) = peer {
            let count = taken.by_address.get(&peer).copied().unwrap_or(0);
            if count >= per_address {
                return None;
            }
            taken.by_address.insert(peer, count + 1);
        }
        taken.altogether += 1;
        Some(Place { places: Arc::clone(self), peer })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose connection it is: an address, or the network of an IPv6 address; `None` for loopback.
fn customer(peer: IpAddr) -> Option<IpAddr> {
    let peer = peer.to_canonical();
    match peer {
        _ if peer.is_loopback() => None,
        IpAddr::V4(_) => Some(peer),
        IpAddr::V6(address) => {
            Some(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - CUSTOMER_BITS))).into())
        }
    }
}

/// One connection's place; given back when dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    peer: Option<IpAddr>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.altogether -= 1;
        if let Some(Entry::Occupied(mut entry)) = self.peer.map(|peer| taken.by_address.entry(peer)) {
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

    fn fill(places: &Arc<Places>, peer: &str) -> Vec<Place> {
        let peer = peer.parse().expect("an address");
        std::iter::from_fn(|| places.take(peer)).collect()
    }

    #[test]
    fn one_address_leaves_room_for_others_and_all_of_them_for_loopback() {
        let places = Places::new(ConnectionLimits { altogether: 80, per_address: 40 });
        let first = fill(&places, "203.0.113.1");
        assert_eq!(first.len(), 40);
        let second = fill(&places, "203.0.113.2");
        assert_eq!(second.len(), 30, "the last eighth is not for strangers");
        assert!(fill(&places, "203.0.113.3").is_empty());
        assert_eq!(fill(&places, "127.0.0.1").len(), 10);
        let local = fill(&places, "::ffff:127.0.0.1");
        assert_eq!(local.len(), 10);
        drop((first, second, local));
        assert_eq!(fill(&places, "127.0.0.2").len(), 80, "loopback has no limit of its own");
        assert!(places.taken().by_address.is_empty(), "nothing is remembered of addresses that have gone");
        assert_eq!(places.taken().altogether, 0);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let places = Places::new(ConnectionLimits { altogether: 80, per_address: 4 });
        let all = fill(&places, "2001:db8:1:2::1");
        assert!(places.take("2001:db8:1:2:ffff::9".parse().expect("an address")).is_none());
        assert!(places.take("2001:db8:1:3::1".parse().expect("an address")).is_some());
        assert_eq!(all.len(), 4);
    }
}
