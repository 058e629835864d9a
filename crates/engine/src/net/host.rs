//! The policy applied to one sandbox, with what is known about the host and about names the sandbox has resolved.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::EgressConfig;
use super::netlink::{Netlink, Route};
use super::policy::{self, Denied, Named};

/// How long a list of the host's addresses is used.
const ADDRESSES_FRESH: Duration = Duration::from_secs(3);
/// Programs keep an address longer than its time to live says: until a connection made right after is under way.
const NAME_GRACE: Duration = Duration::from_secs(60);
/// A time to live beyond this is a mistake.
const LONGEST_NAME: Duration = Duration::from_secs(24 * 3600);
/// Most addresses remembered for allowed names.
const MOST_NAMED: usize = 4096;

pub(super) struct Guard {
    pub(super) config: Arc<EgressConfig>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: HashSet<IpAddr>,
    listed: Option<Instant>,
    named: HashMap<IpAddr, Instant>,
}

impl Guard {
    pub(super) fn new(config: Arc<EgressConfig>) -> Self {
        Self { config, state: Mutex::default() }
    }

    /// Whether the sandbox may reach `address` now. What cannot be found out about the host counts as a refusal.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), Denied> {
        let mut netlink = Netlink::open().map_err(|_| Denied::Host)?;
        let mut state = self.fresh(&mut netlink)?;
        let named = match state.named.get(&address) {
            Some(until) if *until > Instant::now() => Named::Allowed,
            Some(_) => {
                state.named.remove(&address);
                Named::No
            }
            None => Named::No,
        };
        policy::judge(address, &state.addresses, &self.config, named)?;
        drop(state);
        // The list may be seconds old and knows nothing of routes that lead to the host; the kernel's answer is exact.
        match netlink.route(address) {
            Ok(Route::Elsewhere | Route::None) => Ok(()),
            Ok(Route::HostOrGroup) | Err(_) => Err(Denied::Host),
        }
    }

    /// Whether an answer of the name system may mention `address`; if `named` says an allowed name led to it, it may be
    /// reached for as long as the answer lives.
    pub(super) fn admit(&self, address: IpAddr, named: Named, time_to_live: Duration) -> Result<(), Denied> {
        let mut netlink = Netlink::open().map_err(|_| Denied::Host)?;
        let mut state = self.fresh(&mut netlink)?;
        policy::judge(address, &state.addresses, &self.config, named)?;
        if named == Named::Allowed {
            let now = Instant::now();
            if state.named.len() >= MOST_NAMED {
                state.named.retain(|_, until| *until > now);
            }
            if state.named.len() < MOST_NAMED {
                let until = now + NAME_GRACE + time_to_live.min(LONGEST_NAME);
                let known = state.named.entry(address).or_insert(until);
                *known = until.max(*known);
            }
        }
        Ok(())
    }

    fn fresh(&self, netlink: &mut Netlink) -> Result<MutexGuard<'_, State>, Denied> {
        let mut state = self.state.lock().expect("no code panics while it holds this lock");
        if state.listed.is_none_or(|listed| listed.elapsed() >= ADDRESSES_FRESH) {
            state.addresses = netlink.addresses().map_err(|_| Denied::Host)?;
            state.listed = Some(Instant::now());
        }
        Ok(state)
    }
}

/// Whether the host knows a way to `address`.
pub(super) fn is_routed(address: IpAddr) -> bool {
    Netlink::open().and_then(|mut netlink| netlink.route(address)).is_ok_and(|route| route == Route::Elsewhere)
}
