//! Forwards an allowed connection: directly or through a proxy, unchanged or read request by
//! request.
//!
//! Requests are read where a rule sets headers for the name or inspects it, and where only a name
//! allows the connection and it is plain HTTP, whose every request names a host. TLS that no rule
//! names is relayed unchanged, with the target's own certificate: only its server name was checked.
//! Where only a name allows the connection, anything else is refused, since it contains no name.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::decision::{Decision, Protocol};
use crate::dns::Resolver;
use crate::host::Guard;
use crate::proxy::{Destination, Proxy};
use crate::relay::{HeldStart, abort_both, open, relay, relay_opened};
use crate::requests::{self, Connection, Headers, Refusal, RequestOutcome, RequestPolicy, Security};
use crate::rules::Grant;
use crate::sniff::{self, Kind, Sniffed};
use crate::stream::{Dial, Outside, Prefixed};
use crate::tcp::{self, DialFailure};

/// A connected target, and the proxy of the connection.
pub(crate) struct Reached {
    outside: Outside,
    proxy: Option<Arc<Proxy>>,
}

/// Forwards the connections of one sandbox.
pub(crate) struct Forwarder {
    pub(crate) guard: Arc<Guard>,
    pub(crate) resolver: Arc<Resolver>,
}

impl Forwarder {
    /// Connects to an allowed target.
    pub(crate) async fn reach(&self, target: SocketAddr) -> Result<Reached, DialFailure> {
        let Some(proxy) = self.guard.rules().proxy().cloned() else {
            let stream = tcp::dial(target).await?;
            return Ok(Reached { outside: Outside::Tcp(stream), proxy: None });
        };
        match self.tunnel(&proxy, target).await {
            Ok(outside) => Ok(Reached { outside, proxy: Some(proxy) }),
            Err(reason) => {
                let reason = format!("the egress proxy {}:{}: {reason}", proxy.host(), proxy.port());
                self.tell(target, None, reason);
                Err(DialFailure::Refused)
            }
        }
    }

    /// Connects through the proxy, which receives the name that led to the target.
    async fn tunnel(&self, proxy: &Proxy, target: SocketAddr) -> Result<Outside, String> {
        let trust = self.guard.config.trust.as_ref().ok_or("this engine has no certificates")?;
        let addresses = match proxy.host().parse() {
            Ok(address) => vec![address],
            Err(_) => self.resolver.lookup(proxy.host()).await,
        };
        let mut failure = "its name cannot be resolved".to_owned();
        for address in addresses {
            if let Err(denied) = self.guard.check_service(address) {
                failure = format!("it is {denied}");
                continue;
            }
            match tcp::dial(SocketAddr::new(address, proxy.port())).await {
                Ok(stream) => {
                    let to = self.destination(target.ip());
                    let made = proxy.tunnel(stream, trust, &to, target.port()).await;
                    return made.map_err(|error| error.to_string());
                }
                Err(_) => failure = "it cannot be reached".to_owned(),
            }
        }
        Err(failure)
    }

    fn destination(&self, address: IpAddr) -> Destination {
        let (rules, names) = (self.guard.rules(), self.guard.names_of(address));
        let allowed = names.iter().rev().find(|name| rules.names_it(name));
        match allowed.or(names.last()) {
            Some(name) => Destination::Name(name.clone()),
            None => Destination::Address(address),
        }
    }

    /// Serves a connection for as long as the rules allow it.
    pub(crate) async fn carry(self: &Arc<Self>, target: SocketAddr, inside: TcpStream, reached: Reached) {
        let Reached { outside, proxy } = reached;
        let (mut changes, rules) = (self.guard.changes(), self.guard.rules());
        // Checked again, since the rules may have changed while the target was dialled.
        let grant = self.guard.check(target.ip()).ok().filter(|_| rules.proxy() == proxy.as_ref());
        let Some(grant) = grant else { return abort_both(inside, outside) };
        tokio::select! {
            () = self.pass(target, grant, inside, outside) => {}
            () = self.guard.wait_until_revoked(&mut changes, &rules, target.ip(), grant) => {}
        }
    }

    async fn pass(self: &Arc<Self>, target: SocketAddr, grant: Grant, inside: TcpStream, mut outside: Outside) {
        if grant == Grant::Address && !self.guard.rules().sets_headers() {
            return relay(inside, outside).await;
        }
        let Ok(opened) = open(&inside, &mut outside).await else { return abort_both(inside, outside) };
        let kind = sniff::kind(&opened.held);
        if grant == Grant::Name && !self.is_for_an_allowed_name(target, kind, &opened) {
            return abort_both(inside, outside);
        }
        match self.treatment(target, grant, kind, &opened).await {
            Treatment::Read(reading) => reading.serve(Arc::clone(self), inside, outside, opened.held).await,
            Treatment::Relay => relay_opened(inside, outside, opened).await,
            Treatment::Refuse => abort_both(inside, outside),
        }
    }

    /// Decides what happens to an allowed connection.
    async fn treatment(&self, target: SocketAddr, grant: Grant, kind: Kind, opened: &HeldStart) -> Treatment {
        let name = match &opened.sniffed {
            Sniffed::Name(name) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
            _ => None,
        };
        let ruled = name.filter(|name| self.guard.rules().headers_for(name).is_some());
        let confirmed = match &ruled {
            Some(name) if self.confirm(name, target).await => Some(name.clone()),
            _ => None,
        };
        let read = |security| Treatment::Read(Reading { target, grant, confirmed: confirmed.clone(), security });
        match (kind, &confirmed) {
            (Kind::Tls, Some(name)) => read(Security::Tls { name: name.clone() }),
            // A connection for an inspected name must not evade the rule at the address of another
            // name.
            (Kind::Tls, None) if ruled.is_some() && grant == Grant::Name => Treatment::Refuse,
            (Kind::Http, confirmed) if confirmed.is_some() || grant == Grant::Name => read(Security::Plain),
            (Kind::Tls | Kind::Http | Kind::Other, _) => Treatment::Relay,
        }
    }

    /// Whether `name` leads to the target, by an answer that passed through here or by a query now.
    /// A name that only the sandbox claims is not enough: the sandbox could have a secret sent to
    /// any host.
    async fn confirm(&self, name: &str, target: SocketAddr) -> bool {
        if self.guard.led(name, target.ip()) || self.resolver.learn(name, target.ip()).await {
            return true;
        }
        self.tell(
            target,
            Some(name.to_owned()),
            "its rule is not applied: the name does not lead to this address".to_owned(),
        );
        false
    }

    /// Whether a connection that only a name allows is for such a name. A connection without a
    /// name, in whatever protocol, may be for any of the names that share the address.
    fn is_for_an_allowed_name(&self, target: SocketAddr, kind: Kind, opened: &HeldStart) -> bool {
        let (name, reason) = match &opened.sniffed {
            // The program inside has sent nothing.
            _ if opened.held.is_empty() => return true,
            Sniffed::Nameless => (None, NO_NAME),
            Sniffed::Name(name) if kind == Kind::Other => (Some(name.clone()), "CONNECT would hide what follows"),
            Sniffed::Name(name) if self.guard.rules().names_it(name) => return true,
            Sniffed::Name(name) => (Some(name.clone()), NOT_ALLOWED),
            Sniffed::Unclear | Sniffed::Unfinished => (None, "it cannot be read for which name the connection is"),
        };
        self.tell(target, name, reason.to_owned());
        false
    }

    /// Reports a refusal.
    fn tell(&self, target: SocketAddr, name: Option<String>, reason: String) {
        self.guard.tell(Decision { name, reason, ..Decision::about(target, Protocol::Tcp) });
    }
}

const NO_NAME: &str = "the connection says no name, and only a name allows this address: use TLS with a server name or HTTP \
                       with a Host, or allow the address itself";
const NOT_ALLOWED: &str = "the connection is for a name that the sandbox's rules do not allow";

enum Treatment {
    Read(Reading),
    Relay,
    Refuse,
}

/// A connection whose requests are read one by one.
struct Reading {
    target: SocketAddr,
    grant: Grant,
    /// The name that leads to the target and has a rule.
    confirmed: Option<String>,
    security: Security,
}

impl Reading {
    async fn serve(self, forwarder: Arc<Forwarder>, inside: TcpStream, outside: Outside, held: Vec<u8>) {
        let Self { target, grant, confirmed, security } = self;
        let Some(trust) = forwarder.guard.config.trust.clone() else {
            forwarder.tell(target, confirmed, "this engine has no certificates".to_owned());
            return abort_both(inside, outside);
        };
        let redialling = Arc::clone(&forwarder);
        let redial: Dial = Box::new(move || {
            let forwarder = Arc::clone(&redialling);
            Box::pin(async move {
                forwarder.guard.check(target.ip()).map_err(|denied| io::Error::other(denied.to_string()))?;
                let reached = forwarder.reach(target).await.map_err(|_| io::ErrorKind::ConnectionRefused)?;
                Ok(reached.outside)
            })
        });
        let policy = Arc::new(ConnectionPolicy { forwarder, target, grant, confirmed });
        let inside = Box::new(Prefixed::new(held, inside));
        requests::serve(Connection { inside, outside, redial, security, trust, policy }).await;
    }
}

/// Decides about the requests of one connection.
struct ConnectionPolicy {
    forwarder: Arc<Forwarder>,
    target: SocketAddr,
    grant: Grant,
    confirmed: Option<String>,
}

impl RequestPolicy for ConnectionPolicy {
    fn decide(&self, host: Option<&str>) -> Result<Option<Arc<Headers>>, Refusal> {
        let Some(host) = host else {
            return match self.grant {
                Grant::Address => Ok(None),
                Grant::Name => {
                    self.forwarder.tell(self.target, None, NO_NAME.to_owned());
                    Err(Refusal::forbidden(NO_NAME))
                }
            };
        };
        let rules = self.forwarder.guard.rules();
        if self.grant == Grant::Name && !rules.names_it(host) {
            self.forwarder.tell(self.target, Some(host.to_owned()), NOT_ALLOWED.to_owned());
            return Err(Refusal::forbidden(NOT_ALLOWED));
        }
        let led = || self.confirmed.as_deref() == Some(host) || self.forwarder.guard.led(host, self.target.ip());
        Ok(rules.headers_for(host).filter(|_| led()))
    }

    fn secret(&self, name: &str) -> Option<String> {
        (self.forwarder.guard.secrets)(name)
    }

    fn record(&self, outcome: RequestOutcome) {
        let RequestOutcome { allowed, host, reason } = outcome;
        let decision = Decision { allowed, name: host, reason, ..Decision::about(self.target, Protocol::Tcp) };
        self.forwarder.guard.tell(decision);
    }
}
