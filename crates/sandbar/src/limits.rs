//! Divides the server's file descriptors between clients, network flows of sandboxes and the rest,
//! so that neither clients nor sandboxes can exhaust them.
//!
//! ```text
//!   3/8  flows of sandboxes (egress)   two per TCP flow, one per UDP flow or DNS query
//!   3/8  connections of clients        two each: the client's, and one to a sandbox
//!   2/8  the rest                      some per sandbox; files, databases, listeners
//! ```

use anyhow::bail;
use egress::Budget;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Descriptors that a server asks for: the limit of systemd.
const ENOUGH: u64 = 1 << 20;
/// Limit of client connections by default, since each has buffers.
const MOST_CONNECTIONS: u64 = 16_384;
/// Descriptors per sandbox. An idle one uses half of them; the rest is for its flows and clients.
const PER_SANDBOX: u64 = 16;
/// The least that a configuration may set.
const FEWEST: u64 = 128;

/// The `[limits]` section of the configuration.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsConfig {
    /// Most descriptors of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "as many as the system allows, at most 1048576"))]
    pub descriptors: Option<u64>,
    /// Most connections of clients at once. The last eighth is kept for loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "three sixteenths of the descriptors, at most 16384"))]
    pub connections: Option<usize>,
    /// Most connections from one IPv4 address or one IPv6 network (/64). Loopback has no such
    /// limit: all programs of this machine and all clients of a proxy on it share that address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "half of `limits.connections`"))]
    pub connections_per_address: Option<usize>,
    /// New TCP connections and UDP flows per sandbox and second, four times as many at once.
    /// Beyond that connections wait: the sandbox's kernel tries again a second later.
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

    /// Raises this process's limit of descriptors as far as it may, and warns when that is too
    /// little for `sandboxes`.
    pub(crate) fn raise(&self, sandboxes: usize) {
        let wanted = self.descriptors.unwrap_or(ENOUGH);
        let limit = getrlimit(Resource::Nofile);
        let (most, current) = (limit.maximum.unwrap_or(u64::MAX), limit.current.unwrap_or(u64::MAX));
        // Raising the hard limit needs CAP_SYS_RESOURCE, which root may lack.
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

    /// The budget of the network flows of all sandboxes.
    pub(crate) fn egress(&self) -> Budget {
        let part = usize::try_from(descriptors() / 8 * 3).unwrap_or(usize::MAX);
        Budget::new(part, self.flows_per_second)
    }

    /// The limits of client connections in total and per address.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let by_descriptors = (descriptors() / 16 * 3).min(MOST_CONNECTIONS);
        let by_descriptors = usize::try_from(by_descriptors).expect("it is at most MOST_CONNECTIONS");
        let altogether = self.connections.unwrap_or(by_descriptors);
        (altogether, self.connections_per_address.unwrap_or(altogether.div_ceil(2)))
    }
}

/// The current limit of this process.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH).min(ENOUGH)
}
