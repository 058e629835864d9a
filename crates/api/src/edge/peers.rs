//! Addresses that have sent a credential: the API key, or the access token of a sandbox.
//! Interpreter packages from 2.9 on send no token with the calls about contexts, so for these calls
//! a known address replaces it: a client that only knows a sandbox's id, from a preview's URL, is
//! refused. Clients behind one proxy share one address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use http::Request;
use node::{Record, SandboxId};
use parking_lot::Mutex;
use protocol::headers::ACCESS_TOKEN;
use subtle::ConstantTimeEq;

use crate::content::Content;

/// An address is known for this long after its last credential: the longest default lifetime of a
/// sandbox.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The time of a known address is updated at most this often.
const RENEWAL: Duration = Duration::from_secs(60);
/// Beyond this number, expired entries are dropped, then all.
const MAX_PEERS: usize = 10_000;

/// For one sandbox by its access token, or for all by the API key.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Peer {
    sandbox: Option<SandboxId>,
    address: IpAddr,
}

#[derive(Default)]
pub(crate) struct KnownPeers {
    seen: Mutex<HashMap<Peer, Instant>>,
}

impl KnownPeers {
    /// Records an address that has sent the API key.
    pub(crate) fn note(&self, address: IpAddr) {
        self.insert(Peer { sandbox: None, address: address.to_canonical() }, Instant::now());
    }

    /// Whether a request without a token comes from a known address. Records the address of a
    /// request with the sandbox's token.
    pub(super) fn check(&self, record: &Record, request: &Request<Content>) -> bool {
        let Some(peer) = request.extensions().get::<SocketAddr>() else { return false };
        let (now, address) = (Instant::now(), peer.ip().to_canonical());
        let own = Peer { sandbox: Some(record.id.clone()), address };
        match (&record.access_token, request.headers().get(ACCESS_TOKEN)) {
            (Some(token), Some(given)) => {
                if bool::from(given.as_bytes().ct_eq(token.reveal().as_bytes())) {
                    self.insert(own, now);
                }
                false
            }
            _ => self.knows(&Peer { sandbox: None, address }, now) || self.knows(&own, now),
        }
    }

    fn knows(&self, peer: &Peer, now: Instant) -> bool {
        let seen = self.seen.lock();
        seen.get(peer).is_some_and(|at| now.saturating_duration_since(*at) < LIFETIME)
    }

    fn insert(&self, peer: Peer, now: Instant) {
        let mut seen = self.seen.lock();
        if let Some(at) = seen.get_mut(&peer) {
            if now.saturating_duration_since(*at) > RENEWAL {
                *at = now;
            }
            return;
        }
        if seen.len() >= MAX_PEERS {
            seen.retain(|_, at| now.saturating_duration_since(*at) < LIFETIME);
            if seen.len() >= MAX_PEERS {
                seen.clear();
            }
        }
        seen.insert(peer, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(sandbox: Option<&str>, address: &str) -> Peer {
        let sandbox = sandbox.map(|id| id.parse().expect("an ID"));
        Peer { sandbox, address: address.parse().expect("an address") }
    }

    #[test]
    fn addresses_are_known_per_credential_and_for_a_day() {
        let (peers, start) = (KnownPeers::default(), Instant::now());
        peers.insert(peer(Some("ione"), "192.0.2.1"), start);
        assert!(peers.knows(&peer(Some("ione"), "192.0.2.1"), start));
        assert!(!peers.knows(&peer(Some("itwo"), "192.0.2.1"), start));
        assert!(!peers.knows(&peer(Some("ione"), "192.0.2.2"), start));
        assert!(!peers.knows(&peer(Some("ione"), "192.0.2.1"), start + LIFETIME));
        peers.insert(peer(Some("ione"), "192.0.2.1"), start + LIFETIME / 2);
        assert!(peers.knows(&peer(Some("ione"), "192.0.2.1"), start + LIFETIME));
    }

    #[test]
    fn the_number_of_known_addresses_is_limited() {
        let (peers, start) = (KnownPeers::default(), Instant::now());
        for number in 0..(MAX_PEERS as u32 + 10) {
            peers.insert(Peer { sandbox: None, address: IpAddr::from(number.to_be_bytes()) }, start);
        }
        assert!(peers.seen.lock().len() <= MAX_PEERS);
    }
}
