//! How the server divides what it has of the machine: descriptors between its clients, the flows of sandboxes, and the
//! rest, so that neither clients nor sandboxes can keep it from answering.
//!
//! ```text
//!   3/8  flows of sandboxes (egress)      two for a TCP flow, one for a UDP flow or a question to a name server
//!   3/8  connections of clients           two each: the client's, and one to a sandbox
//!   2/8  the rest                         some for each sandbox; files, databases, listeners
//! ```

use anyhow::bail;
use engine::net::Budget;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// As many descriptors as a server asks for: what systemd allows.
const ENOUGH: u64 = 1 << 20;
/// More are of no use: each has buffers.
const MOST_CONNECTIONS: u64 = 16_384;
/// What a sandbox holds while nothing happens in it is half of that; so its flows and clients have some, too.
const PER_SANDBOX: u64 = 16;
/// A server with fewer does not start.
const FEWEST: u64 = 128;

/// The `[limits]` section of the configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsConfig {
    /// Most descriptors of the server; absent: as many as the system allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<u64>,
    /// Most connections of clients; absent: by the descriptors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Most connections from one address, loopback excepted; absent: half of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_address: Option<usize>,
    /// New connections and UDP flows of one sandbox a second.
    pub flows_per_second: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            descriptors: None,
            connections: None,
            connections_per_address: None,
            flows_per_second: Budget::FLOWS_PER_SECOND,
        }
    }
}

impl LimitsConfig {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.descriptors.is_some_and(|descriptors| descriptors < FEWEST) {
            bail!("limits.descriptors must be at least {FEWEST}");
        }
        if self.connections == Some(0) || self.connections_per_address == Some(0) || self.flows_per_second == 0 {
            bail!("limits.connections, limits.connections_per_address and limits.flows_per_second must be above 0");
        }
        Ok(())
    }

    /// Raises this process's limit of descriptors as far as it may, and warns where that is too little for `sandboxes`.
    pub(crate) fn raise(&self, sandboxes: usize) {
        let wanted = self.descriptors.unwrap_or(ENOUGH);
        let limit = getrlimit(Resource::Nofile);
        let (most, current) = (limit.maximum.unwrap_or(u64::MAX), limit.current.unwrap_or(u64::MAX));
        // Only a privilege that root may lack raises the hard limit.
        let beyond = Rlimit { current: Some(wanted), maximum: Some(wanted.max(most)) };
        let within = Rlimit { current: Some(wanted.min(most)), ..limit };
        let raised = (wanted > most && setrlimit(Resource::Nofile, beyond).is_ok()) || {
            setrlimit(Resource::Nofile, within).is_ok()
        };
        if !raised {
            warn!(current, wanted, "cannot raise the limit of descriptors");
        }
        let descriptors = descriptors();
        let needed = PER_SANDBOX.saturating_mul(sandboxes as u64).min(ENOUGH);
        if descriptors < needed {
            warn!(
                descriptors,
                needed,
                sandboxes,
                "few descriptors for so many sandboxes: beyond {} of them new connections are refused early. Raise the hard \
                 limit (LimitNOFILE={ENOUGH} for a service, `ulimit -Hn {ENOUGH}` in root's shell), or lower \
                 sandboxes.max_sandboxes",
                descriptors / PER_SANDBOX
            );
        }
    }

    /// What the flows of all sandboxes may hold.
    pub(crate) fn egress(&self) -> Budget {
        let part = usize::try_from(descriptors() / 8 * 3).unwrap_or(usize::MAX);
        Budget::new(part, self.flows_per_second)
    }

    /// Most connections of clients, and most from one address.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let by_descriptors = (descriptors() / 16 * 3).min(MOST_CONNECTIONS);
        let by_descriptors = usize::try_from(by_descriptors).expect("it is at most MOST_CONNECTIONS");
        let altogether = self.connections.unwrap_or(by_descriptors);
        (altogether, self.connections_per_address.unwrap_or(altogether.div_ceil(2)))
    }
}

/// How many this process may have.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH).min(ENOUGH)
}
