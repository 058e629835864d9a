//! What a sandbox may reach: kept in the words of the call that said so, which are given back as they came.

use std::net::Ipv4Addr;

use engine::net::{InvalidRule, Rules};
use serde::{Deserialize, Serialize};

/// What everything is in a list of ranges.
pub const EVERYTHING: &str = "0.0.0.0/0";

/// Lists of what a sandbox may reach, known to be such. The default allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Lists", into = "Lists")]
pub struct Egress {
    lists: Lists,
    rules: Rules,
}

/// As they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lists {
    /// Addresses, ranges and domain names. They win over `deny_out`.
    pub allow_out: Vec<String>,
    /// Addresses and ranges.
    pub deny_out: Vec<String>,
    /// Who resolves names; the host's servers if empty.
    pub dns_servers: Vec<Ipv4Addr>,
}

impl TryFrom<Lists> for Egress {
    type Error = InvalidRule;

    fn try_from(lists: Lists) -> Result<Self, InvalidRule> {
        let rules = Rules::new(&lists.allow_out, &lists.deny_out, &lists.dns_servers)?;
        Ok(Self { lists, rules })
    }
}

impl From<Egress> for Lists {
    fn from(egress: Egress) -> Self {
        egress.lists
    }
}

impl Egress {
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// For a sandbox whose internet is on or off; off means that what is not allowed is denied.
    pub(crate) fn rules(&self, internet: bool) -> Rules {
        let rules = self.rules.clone();
        if internet { rules } else { rules.deny_everything() }
    }
}
