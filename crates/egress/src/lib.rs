//! The network of a sandbox: egress, and connections to its ports.
//!
//! A sandbox has a network namespace of its own with loopback and one TUN device. The other end of
//! the device is an [`Egress`] in this process, which enforces the policy of the sandbox and
//! reports every refusal. The host gets no additional rule, bridge, address or route.
//!
//! ```text
//!   sandbox's namespace                       this process                     host's namespace
//!   app ── kernel TCP ── tun0 ── SYN ───────▶ policy, dial ──────────────────▶ target
//!          kernel TCP ◀─ tun0 ◀─ SYN rewritten to the listener, once dialled
//!          listener ────────────────────────▶ relay ◀───────────────────────▶ target
//!   app ── UDP ───────── tun0 ──────────────▶ flow table, connected sockets ─▶ target
//!   app ── DNS ───────── tun0 ──────────────▶ resolver ──────────────────────▶ host's name servers
//! ```
//!
//! The sandbox's own kernel terminates TCP at a listener inside the namespace; packets are only
//! rewritten, never reassembled. The policy checks the address of the packet itself, so no name can
//! be rebound between check and use. Where only a name allows an address, an answer that passed
//! through here must have led there, and the name that the connection itself asks for must be
//! allowed, too. Where a rule sets headers, requests are read on the way (`requests`); a
//! connection that no rule names is not.
//!
//! This crate knows neither sandboxes nor certificate authorities: the caller gives a namespace and
//! what signs for the names of inspected connections ([`Trust`]).

mod answers;
mod budget;
mod decision;
mod device;
mod dns;
mod domain;
mod egress;
mod forwarder;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod names;
mod nameservers;
mod namespace;
mod netlink;
mod packet;
mod policy;
mod proxy;
mod public;
mod questions;
mod relay;
mod requests;
mod rules;
mod sniff;
mod stream;
mod sys;
mod tcp;
mod trust;
mod udp;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

pub use budget::Budget;
pub use decision::{Decision, Journal, Policy, Protocol, Secrets};
pub use device::Device;
pub use domain::{Domain, InvalidDomain};
pub use egress::Egress;
pub use ipnet::IpNet;
pub use namespace::dial_in;
pub use proxy::{InvalidProxy, Proxy, ProxyTls};
pub use public::is_public;
pub use requests::{Headers, InvalidHeader};
pub use rules::{InvalidRule, Rules};
pub use trust::{InspectionAuthority, Trust, TrustError};

// Every sandbox has the same addresses: they exist in its namespace only. RFC 7335 reserves the
// range for links between a machine and itself, so it hides nothing that a sandbox could want to
// connect to.
const PREFIX_V4: u8 = 29;
const PREFIX_V6: u8 = 64;
/// The sandbox's own addresses on `tun0`.
const SANDBOX_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
const SANDBOX_V6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x616e, 0x6462, 0x6172, 0, 0, 0, 2);
/// The source addresses of rewritten connections.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x616e, 0x6462, 0x6172, 0, 0, 0, 1);
/// The name server in the `/etc/resolv.conf` of a sandbox. [`Egress`] answers its queries, over UDP
/// and TCP.
pub const NAMESERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 3);

/// What sandboxes may connect to besides public addresses, their name servers, and their budget.
#[derive(Debug, Clone, Default)]
pub struct EgressConfig {
    /// Private ranges and ranges of neighbours that are allowed. Addresses of the host, loopback
    /// and link-local ones are never reachable.
    pub allow_ranges: Vec<IpNet>,
    /// Names whose private addresses are allowed once resolved: `registry.corp`, or `*.corp` for
    /// all below it.
    pub allow_names: Vec<String>,
    /// Name servers to query; `None` follows the host's `/etc/resolv.conf`.
    pub nameservers: Option<Vec<SocketAddr>>,
    /// Certificates for connections whose requests are read; without them, rules that set headers
    /// and proxies refuse everything.
    pub trust: Option<Arc<Trust>>,
    /// Limits of what the flows of all sandboxes hold together.
    pub budget: Arc<Budget>,
}
