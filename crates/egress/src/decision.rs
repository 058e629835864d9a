//! The reports of egress decisions, and the policy of one sandbox.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::rules::Rules;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    /// A query to the name server, or an address in its answer.
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

/// One decision. Equal decisions compare equal, so that a journal can count them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decision {
    pub allowed: bool,
    pub protocol: Protocol,
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
    /// The name that led to the address, or the queried name.
    pub name: Option<String>,
    /// The reason, in a few words.
    pub reason: String,
}

impl Decision {
    pub(crate) fn about(target: SocketAddr, protocol: Protocol) -> Self {
        let (address, port) = (Some(target.ip()), Some(target.port()));
        Self { allowed: false, protocol, address, port, name: None, reason: String::new() }
    }
}

/// Receives decisions: every refusal, and all decisions where the sandbox has rules. Called from
/// many tasks; must not block.
pub type Journal = Arc<dyn Fn(Decision) + Send + Sync>;

/// Looks up the values of secrets that headers name. Called from many tasks; must not block.
pub type Secrets = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What a sandbox may connect to, the journal of its decisions, and the secrets for its requests.
#[derive(Clone)]
pub struct Policy {
    pub rules: Rules,
    pub journal: Journal,
    pub secrets: Secrets,
}

impl Policy {
    /// A policy without a journal and without secrets.
    pub fn unheard(rules: Rules) -> Self {
        Self { rules, journal: Arc::new(|_| {}), secrets: Arc::new(|_| None) }
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("rules", &self.rules).finish_non_exhaustive()
    }
}
