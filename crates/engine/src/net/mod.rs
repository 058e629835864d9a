//! The network of a sandbox: the way out, and the way in to its ports.
//!
//! A sandbox has a network namespace of its own with loopback and one TUN device whose other end is an [`Egress`] in this process,
//! which knows what the sandbox may reach and tells of every refusal, also where that is nothing. No rule, bridge, address or route is added to the host.
//!
//! ```text
//!   sandbox's namespace                          this process                      host's namespace
//!   app ── kernel TCP ── tun0 ─── SYN ────────▶ policy, dial ───────────────────▶ target
//!          kernel TCP ◀─ tun0 ◀── SYN rewritten to the listener, once dialled
//!          listener ───────────────────────────▶ relay ◀────────────────────────▶ target
//!   app ── UDP ───────── tun0 ───────────────▶ flow table, connected sockets ──▶ target
//!   app ── DNS ───────── tun0 ───────────────▶ resolver ───────────────────────▶ the host's name servers
//! ```
//!
//! The sandbox's own kernel terminates TCP at a listener inside the namespace; packets are only rewritten, never reassembled.
//! What reaches the policy is the address of the packet itself, so no name can be rebound between check and use. Where only a name
//! allows an address, the name must have led there by an answer that passed through here, and what the connection itself asks
//! for by name must be allowed, too. Where a rule sets headers, requests are read on the way (`way.rs`); a connection that no
//! rule names is not.

mod answers;
mod budget;
mod decision;
mod device;
mod dns;
mod domain;
mod egress;
mod host;
mod names;
mod nameservers;
mod namespace;
mod netlink;
mod opening;
mod packet;
mod policy;
mod public;
mod questions;
mod relay;
mod rules;
mod tcp;
mod udp;
mod way;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

pub use budget::Budget;
pub use decision::{Decision, Journal, Policy, Protocol, Secrets};
pub use domain::{Domain, InvalidDomain};
pub use egress::Egress;
pub use ipnet::IpNet;
pub use namespace::dial_in;
pub use outbound::{Headers, InvalidHeader, InvalidProxy, Proxy, ProxyTls, Trust, TrustError};
pub use public::is_public;
pub use rules::{InvalidRule, Rules};

// Every sandbox has the same addresses: they are known in its namespace only. The range is reserved by RFC 7335 for links
// between a machine and itself, so it hides nothing a sandbox could want to reach.
const PREFIX_V4: u8 = 29;
const PREFIX_V6: u8 = 64;
/// The sandbox's own addresses on `tun0`.
const SANDBOX_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
const SANDBOX_V6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x616e, 0x6462, 0x6172, 0, 0, 0, 2);
/// Where rewritten connections seem to come from.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x616e, 0x6462, 0x6172, 0, 0, 0, 1);
/// The name server that `/etc/resolv.conf` inside a sandbox names. Answered by [`Egress`], over UDP and TCP.
pub const NAMESERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 3);

/// What sandboxes may reach besides public addresses, who resolves names for them, and how much they may hold.
#[derive(Debug, Clone, Default)]
pub struct EgressConfig {
    /// Private ranges and those of neighbours that may be reached. Addresses of the host, loopback
    /// and link-local ones stay out of reach.
    pub allow_ranges: Vec<IpNet>,
    /// Names whose private addresses may be reached once resolved: `registry.corp`, or `*.corp` for all below it.
    pub allow_names: Vec<String>,
    /// Name servers to ask; `None` follows the host's `/etc/resolv.conf`.
    pub nameservers: Option<Vec<SocketAddr>>,
    /// Certificates for what is read on the way out; without, rules that set headers and proxies refuse everything.
    pub trust: Option<Arc<Trust>>,
    /// What the flows of all sandboxes may hold together.
    pub budget: Arc<Budget>,
}
