//! How a connection that may leave does leave: directly or through a proxy, as it is or read request by request.
//!
//! It is read where a rule sets headers for its name or inspects it, and where only a name allows
//! it and it speaks plain HTTP, whose every request names a host. TLS that no rule names passes as
//! it is, with the target's own certificate: only its server name was judged. Where only a name
//! allows it, anything else is refused, since it says no name.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use outbound::{Connection, Destination, Headers, Judge, Outside, Prefixed, Proxy, Refusal, Security, Told};
use tokio::net::TcpStream;

use super::decision::{Decision, Protocol};
use super::dns::Resolver;
use super::host::Guard;
use super::opening::{self, Kind, Opening};
use super::relay::{Opened, abort_both, open, relay, relay_opened};
use super::rules::Leave;
use super::tcp::{self, DialFailure};

/// A connected target, and through which proxy.
pub(super) struct Reached {
    outside: Outside,
    proxy: Option<Arc<Proxy>>,
}

/// The way out of one sandbox.
pub(super) struct Way {
    pub(super) guard: Arc<Guard>,
    pub(super) resolver: Arc<Resolver>,
}

impl Way {
    /// Connects to a target that may be reached.
    pub(super) async fn reach(&self, target: SocketAddr) -> Result<Reached, DialFailure> {
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

    /// Through the proxy, which is told the name that led to the target.
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

    /// Carries a connection for as long as the rules allow it.
    pub(super) async fn carry(self: &Arc<Self>, target: SocketAddr, inside: TcpStream, reached: Reached) {
        let Reached { outside, proxy } = reached;
        let (mut changes, rules) = (self.guard.changes(), self.guard.rules());
        // Asked again, since the rules may have changed while the target was dialled.
        let leave = self.guard.check(target.ip()).ok().filter(|_| rules.proxy() == proxy.as_ref());
        let Some(leave) = leave else { return abort_both(inside, outside) };
        tokio::select! {
            () = self.pass(target, leave, inside, outside) => {}
            () = self.guard.revoked(&mut changes, &rules, target.ip(), leave) => {}
        }
    }

    async fn pass(self: &Arc<Self>, target: SocketAddr, leave: Leave, inside: TcpStream, mut outside: Outside) {
        if leave == Leave::Address && !self.guard.rules().sets_headers() {
            return relay(inside, outside).await;
        }
        let Ok(opened) = open(&inside, &mut outside).await else { return abort_both(inside, outside) };
        let kind = opening::kind(&opened.held);
        if leave == Leave::Name && !self.is_for_an_allowed_name(target, kind, &opened) {
            return abort_both(inside, outside);
        }
        match self.treatment(target, leave, kind, &opened).await {
            Treatment::Read(reading) => reading.serve(Arc::clone(self), inside, outside, opened.held).await,
            Treatment::Relay => relay_opened(inside, outside, opened).await,
            Treatment::Refuse => abort_both(inside, outside),
        }
    }

    /// What becomes of a connection that may be carried.
    async fn treatment(&self, target: SocketAddr, leave: Leave, kind: Kind, opened: &Opened) -> Treatment {
        let name = match &opened.said {
            Opening::Name(name) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
            _ => None,
        };
        let ruled = name.filter(|name| self.guard.rules().headers_for(name).is_some());
        let confirmed = match &ruled {
            Some(name) if self.confirmed(name, target).await => Some(name.clone()),
            _ => None,
        };
        let read = |security| Treatment::Read(Reading { target, leave, confirmed: confirmed.clone(), security });
        match (kind, &confirmed) {
            (Kind::Tls, Some(name)) => read(Security::Tls { name: name.clone() }),
            // A rule that inspects a name must not be evaded at the address of another name.
            (Kind::Tls, None) if ruled.is_some() && leave == Leave::Name => Treatment::Refuse,
            (Kind::Http, confirmed) if confirmed.is_some() || leave == Leave::Name => read(Security::Plain),
            (Kind::Tls | Kind::Http | Kind::Other, _) => Treatment::Relay,
        }
    }

    /// Whether `name` leads to the target, by an answer that passed through here or by asking now. Whoever else says so may be
    /// the sandbox itself, which would have a secret sent to where it likes.
    async fn confirmed(&self, name: &str, target: SocketAddr) -> bool {
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

    /// Whether a connection that only a name allows says that it is for such a name. A connection
    /// that says none, in whatever protocol, may be for any of the names that share the address.
    fn is_for_an_allowed_name(&self, target: SocketAddr, kind: Kind, opened: &Opened) -> bool {
        let (name, reason) = match &opened.said {
            // The program inside only listened.
            _ if opened.held.is_empty() => return true,
            Opening::Nameless => (None, NO_NAME),
            Opening::Name(name) if kind == Kind::Other => (Some(name.clone()), "CONNECT would hide what follows"),
            Opening::Name(name) if self.guard.rules().names_it(name) => return true,
            Opening::Name(name) => (Some(name.clone()), NOT_ALLOWED),
            Opening::Unclear | Opening::Unfinished => (None, "it cannot be read for which name the connection is"),
        };
        self.tell(target, name, reason.to_owned());
        false
    }

    /// Tells of a refusal.
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
    leave: Leave,
    /// Leads to the target and has a rule.
    confirmed: Option<String>,
    security: Security,
}

impl Reading {
    async fn serve(self, way: Arc<Way>, inside: TcpStream, outside: Outside, held: Vec<u8>) {
        let Self { target, leave, confirmed, security } = self;
        let Some(trust) = way.guard.config.trust.clone() else {
            way.tell(target, confirmed, "this engine has no certificates".to_owned());
            return abort_both(inside, outside);
        };
        let redialling = Arc::clone(&way);
        let redial: outbound::Dial = Box::new(move || {
            let way = Arc::clone(&redialling);
            Box::pin(async move {
                way.guard.check(target.ip()).map_err(|denied| io::Error::other(denied.to_string()))?;
                let reached = way.reach(target).await.map_err(|_| io::ErrorKind::ConnectionRefused)?;
                Ok(reached.outside)
            })
        });
        let judge = Arc::new(Bench { way, target, leave, confirmed });
        let inside = Box::new(Prefixed::new(held, inside));
        outbound::serve(Connection { inside, outside, redial, security, trust, judge }).await;
    }
}

/// Who decides about the requests of one connection.
struct Bench {
    way: Arc<Way>,
    target: SocketAddr,
    leave: Leave,
    confirmed: Option<String>,
}

impl Judge for Bench {
    fn judge(&self, host: Option<&str>) -> Result<Option<Arc<Headers>>, Refusal> {
        let Some(host) = host else {
            return match self.leave {
                Leave::Address => Ok(None),
                Leave::Name => {
                    self.way.tell(self.target, None, NO_NAME.to_owned());
                    Err(Refusal::forbidden(NO_NAME))
                }
            };
        };
        let rules = self.way.guard.rules();
        if self.leave == Leave::Name && !rules.names_it(host) {
            self.way.tell(self.target, Some(host.to_owned()), NOT_ALLOWED.to_owned());
            return Err(Refusal::forbidden(NOT_ALLOWED));
        }
        let led = || self.confirmed.as_deref() == Some(host) || self.way.guard.led(host, self.target.ip());
        Ok(rules.headers_for(host).filter(|_| led()))
    }

    fn secret(&self, name: &str) -> Option<String> {
        (self.way.guard.secrets)(name)
    }

    fn tell(&self, told: Told) {
        let Told { allowed, host, reason } = told;
        let decision = Decision { allowed, name: host, reason, ..Decision::about(self.target, Protocol::Tcp) };
        self.way.guard.tell(decision);
    }
}
