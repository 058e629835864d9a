//! What is told about each decision on a sandbox's way out.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::rules::Rules;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    /// A question to the name server, or an address in its answer.
    Dns,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Dns => "dns",
        })
    }
}

/// One decision. Two of the same are equal, so that whoever keeps them can count instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decision {
    pub allowed: bool,
    pub protocol: Protocol,
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
    /// What led to the address, or what was asked for.
    pub name: Option<String>,
    /// Why, in a few words.
    pub reason: String,
}

impl Decision {
    pub(super) fn about(target: SocketAddr, protocol: Protocol) -> Self {
        let (address, port) = (Some(target.ip()), Some(target.port()));
        Self { allowed: false, protocol, address, port, name: None, reason: String::new() }
    }
}

/// Hears of decisions: of refusals always, of all where the sandbox has rules. Called from many tasks; must not block.
pub type Journal = Arc<dyn Fn(Decision) + Send + Sync>;

/// The values of secrets that headers name. Called from many tasks; must not block.
pub type Secrets = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What a sandbox may reach, who hears of it, and what its requests are given on the way.
#[derive(Clone)]
pub struct Policy {
    pub rules: Rules,
    pub journal: Journal,
    pub secrets: Secrets,
}

impl Policy {
    /// Nobody hears of the decisions, and there are no secrets.
    pub fn unheard(rules: Rules) -> Self {
        Self { rules, journal: Arc::new(|_| {}), secrets: Arc::new(|_| None) }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("rules", &self.rules).finish_non_exhaustive()
    }
}
