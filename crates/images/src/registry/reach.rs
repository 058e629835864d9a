//! Decides which hosts may be connected to for images. The author of a build chooses the registry,
//! so the server could otherwise be used to reach the networks of its host: it connects to public
//! addresses only, unless the configuration names the host and the port.
//!
//! Invariant: the address that was checked is the address that is connected to. [`Reach::admit`]
//! resolves a name and keeps the result; the HTTP client resolves names through [`Reach`], never
//! through the network.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::proxy::matcher::Matcher;
use parking_lot::{Mutex, MutexGuard};
use reqwest::Url;
use reqwest::dns::{Name, Resolve, Resolving};

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(15);

/// Whether an address is public and not one of the host's own.
pub type IsPublic = fn(IpAddr) -> bool;

pub(super) struct Reach {
    /// Hosts and ports that the configuration names.
    named: BTreeSet<(String, u16)>,
    is_public: IsPublic,
    /// Proxies of the environment: the operator's own choice.
    proxies: Matcher,
    admitted: Arc<Admitted>,
}

/// What the HTTP client may connect to.
#[derive(Default)]
pub(super) struct Admitted(Mutex<Table>);

#[derive(Default)]
struct Table {
    addresses: HashMap<String, Vec<SocketAddr>>,
    proxies: HashSet<String>,
}

impl Admitted {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }
}

impl Reach {
    pub(super) fn new(named: BTreeSet<(String, u16)>, is_public: IsPublic) -> Self {
        Self { named, is_public, proxies: Matcher::from_env(), admitted: Arc::default() }
    }

    /// For the HTTP client.
    pub(super) fn resolver(&self) -> Arc<Admitted> {
        Arc::clone(&self.admitted)
    }

    /// Decides whether `url` may be requested, before anything is sent. The error is the same for a
    /// name that does not exist, one that leads to a private address, and a private address, open
    /// port or not.
    pub(super) async fn admit(&self, url: &Url) -> Result<(), String> {
        let place = host_and_port(url).ok_or_else(|| "the registry's URL has no host".to_owned())?;
        let (host, port) = &place;
        let is_named = self.named.contains(&place);
        let refused = || {
            let (scheme, shown) = (url.scheme(), format!("{host}:{port}"));
            format!(
                "{shown} has no public address; if this registry is meant, name it in the server's configuration: \
                 [sandboxes] registry_mirrors = {{ \"{shown}\" = \"{scheme}://{shown}\" }}"
            )
        };
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            // The client connects to addresses in URLs without a resolver.
            return if is_named || (self.is_public)(address) { Ok(()) } else { Err(refused()) };
        }
        let lookup = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host.as_str(), *port))).await;
        let found: Vec<SocketAddr> = lookup.ok().and_then(Result::ok).map(Iterator::collect).unwrap_or_default();
        let proxy = url.as_str().parse().ok().and_then(|uri| self.proxies.intercept(&uri));
        if let Some(proxy) = proxy {
            // The proxy resolves and connects; a name with an address that this host knows to be
            // private is refused all the same.
            if !is_named && found.iter().any(|address| !(self.is_public)(address.ip())) {
                return Err(refused());
            }
            self.admitted.table().proxies.extend(proxy.uri().host().map(str::to_owned));
            return Ok(());
        }
        let admitted: Vec<SocketAddr> =
            found.into_iter().filter(|address| is_named || (self.is_public)(address.ip())).collect();
        if admitted.is_empty() {
            return Err(refused());
        }
        self.admitted.table().addresses.insert(host.clone(), admitted);
        Ok(())
    }
}

impl Resolve for Admitted {
    fn resolve(&self, name: Name) -> Resolving {
        let (addresses, is_proxy) = {
            let table = self.table();
            (table.addresses.get(name.as_str()).cloned(), table.proxies.contains(name.as_str()))
        };
        Box::pin(async move {
            let addresses = match addresses {
                Some(addresses) => addresses,
                None if is_proxy => tokio::net::lookup_host((name.as_str(), 0)).await?.collect(),
                None => return Err(format!("{} was not admitted", name.as_str()).into()),
            };
            Ok(Box::new(addresses.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

/// The normalized form in which the configuration and requests are compared.
pub(super) fn host_and_port(url: &Url) -> Option<(String, u16)> {
    Some((url.host_str()?.to_ascii_lowercase(), url.port_or_known_default()?))
}
