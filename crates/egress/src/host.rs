//! Applies the policy to one sandbox, with the host's addresses and routes and the names that the
//! sandbox has resolved.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::EgressConfig;
use crate::decision::{Decision, Journal, Policy, Protocol, Secrets};
use crate::names::Names;
use crate::netlink::{Netlink, Route};
use crate::policy::{self, Denied, Named};
use crate::rules::{Grant, Rules};

/// How long a list of the host's addresses is used.
const ADDRESSES_INTERVAL: Duration = Duration::from_secs(3);
/// Programs use an address longer than its TTL, until a connection that they make right after is
/// established.
const NAME_GRACE: Duration = Duration::from_secs(60);
/// A TTL beyond this is a mistake.
const LONGEST_NAME: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Guard {
    pub(crate) config: Arc<EgressConfig>,
    rules: watch::Sender<Arc<Rules>>,
    journal: Journal,
    pub(crate) secrets: Secrets,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    addresses: HashSet<IpAddr>,
    listed: Option<Instant>,
    names: Names,
}

impl Guard {
    /// Names that the sandbox resolves are kept in the file `names`.
    pub(crate) fn new(config: Arc<EgressConfig>, policy: Policy, names: Option<&Path>) -> Self {
        let Policy { rules, journal, secrets } = policy;
        let names = names.map(Names::load).unwrap_or_default();
        let state = Mutex::new(State { names, ..State::default() });
        Self { config, rules: watch::Sender::new(Arc::new(rules)), journal, secrets, state }
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.borrow())
    }

    /// Replaces the rules. [`Guard::wait_until_revoked`] closes what the new rules do not allow.
    pub(crate) fn set_rules(&self, rules: Rules) {
        self.rules.send_replace(Arc::new(rules));
    }

    /// Subscribes to changes of the rules.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Rules>> {
        self.rules.subscribe()
    }

    /// Resolves when one of the `changes` since `before` no longer allows the connection to
    /// `address`: by the same `grant`, through the same proxy, and with the same decision whether
    /// requests are read.
    pub(crate) async fn wait_until_revoked(
        &self,
        changes: &mut watch::Receiver<Arc<Rules>>,
        before: &Rules,
        address: IpAddr,
        grant: Grant,
    ) {
        while changes.changed().await.is_ok() {
            let now = self.rules();
            let names = self.names_of(address);
            let newly_read = |name: &String| now.headers_for(name).is_some() && before.headers_for(name).is_none();
            if now.proxy() != before.proxy() || names.iter().any(newly_read) {
                return;
            }
            match self.check(address) {
                Ok(Grant::Address) => {}
                Ok(Grant::Name) if grant == Grant::Name => {}
                _ => return,
            }
        }
    }

    /// Whether the sandbox may connect to `target` now. Reports the decision to the journal.
    pub(crate) fn judge(&self, target: SocketAddr, protocol: Protocol) -> Result<Grant, Denied> {
        let verdict = self.check(target.ip());
        if verdict.is_err() || !self.rules.borrow().is_empty() {
            let name = {
                let state = self.state.lock();
                let rules = self.rules();
                let names = state.names.of(target.ip());
                names.clone().rfind(|name| rules.names_it(name)).or_else(|| names.clone().last()).map(str::to_owned)
            };
            let reason = match &verdict {
                Ok(Grant::Address) => "allowed by the sandbox's rules".to_owned(),
                Ok(Grant::Name) => "an allowed name led there".to_owned(),
                Err(denied) => denied.to_string(),
            };
            self.tell(Decision { allowed: verdict.is_ok(), name, reason, ..Decision::about(target, protocol) });
        }
        verdict
    }

    pub(crate) fn tell(&self, decision: Decision) {
        (self.journal)(decision);
    }

    /// Whether the sandbox may connect to `address` now. An error while reading the host's state is
    /// a refusal.
    pub(crate) fn check(&self, address: IpAddr) -> Result<Grant, Denied> {
        let mut netlink = Netlink::open().map_err(|_| Denied::Host)?;
        let state = self.fresh(&mut netlink)?;
        let allowed = state.names.of(address).any(|name| policy::name_is_allowed(name, &self.config));
        let named = if allowed { Named::Allowed } else { Named::No };
        policy::judge(address, &state.addresses, &self.config, named)?;
        let grant = self.rules.borrow().grant(address, state.names.of(address)).ok_or(Denied::Rules)?;
        drop(state);
        self.check_route(&mut netlink, address, named)?;
        Ok(grant)
    }

    /// The names that led to `address`, the one queried last at the end.
    pub(crate) fn names_of(&self, address: IpAddr) -> Vec<String> {
        let state = self.state.lock();
        state.names.of(address).map(str::to_owned).collect()
    }

    /// Whether `name` led to `address`.
    pub(crate) fn led(&self, name: &str, address: IpAddr) -> bool {
        self.names_of(address).iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Whether the sandbox's owner may use `address` as a name server or proxy: the sandbox's rules
    /// do not apply to it, the machine's policy does.
    pub(crate) fn check_service(&self, address: IpAddr) -> Result<(), Denied> {
        let mut netlink = Netlink::open().map_err(|_| Denied::Host)?;
        let state = self.fresh(&mut netlink)?;
        policy::judge(address, &state.addresses, &self.config, Named::No)?;
        drop(state);
        self.check_route(&mut netlink, address, Named::No)
    }

    /// Whether an answer of a name server may contain `address`. If `name` was queried and led to
    /// it, that is remembered for the TTL of the answer.
    pub(crate) fn admit(&self, address: IpAddr, name: Option<&str>, time_to_live: Duration) -> Result<(), Denied> {
        let mut netlink = Netlink::open().map_err(|_| Denied::Host)?;
        let mut state = self.fresh(&mut netlink)?;
        let allowed = name.is_some_and(|name| policy::name_is_allowed(name, &self.config));
        let named = if allowed { Named::Allowed } else { Named::No };
        policy::judge(address, &state.addresses, &self.config, named)?;
        self.rules.borrow().grant(address, name.into_iter()).ok_or(Denied::Rules)?;
        self.check_route(&mut netlink, address, named)?;
        if let Some(name) = name {
            state.names.remember(address, name, NAME_GRACE + time_to_live.min(LONGEST_NAME));
        }
        Ok(())
    }

    fn fresh(&self, netlink: &mut Netlink) -> Result<MutexGuard<'_, State>, Denied> {
        let mut state = self.state.lock();
        if state.listed.is_none_or(|listed| listed.elapsed() >= ADDRESSES_INTERVAL) {
            state.addresses = netlink.addresses().map_err(|_| Denied::Host)?;
            state.listed = Some(Instant::now());
        }
        Ok(state)
    }

    /// Asks the kernel for the route of a packet to `address`. The list of addresses may be seconds
    /// old and does not cover routes that lead to the host; the kernel's answer is exact. A
    /// translator or tunnel would take an IPv4 address out of an IPv6 one, so the route of that is
    /// checked, too.
    fn check_route(&self, netlink: &mut Netlink, address: IpAddr, named: Named) -> Result<(), Denied> {
        let embedded = match address {
            IpAddr::V6(address) => policy::embedded_v4(address).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        for hop in std::iter::once(address).chain(embedded) {
            match netlink.route(hop) {
                Ok(Route::Routed | Route::None) => {}
                Ok(Route::OnLink) if policy::is_opened(address, &self.config, named) => {}
                Ok(Route::OnLink) => return Err(Denied::Neighbour),
                Ok(Route::HostOrGroup) | Err(_) => return Err(Denied::Host),
            }
        }
        Ok(())
    }
}

/// Whether the host has a route to `address`.
pub(crate) fn is_routed(address: IpAddr) -> bool {
    Netlink::open()
        .and_then(|mut netlink| netlink.route(address))
        .is_ok_and(|route| matches!(route, Route::Routed | Route::OnLink))
}
