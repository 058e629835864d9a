//! The E2B HTTP face of a node, on one listener: the control plane, and the edge that leads to the ports of sandboxes.
//! What is for neither goes [`Elsewhere`].
//!
//! [`routing`] decides whom a request is for. Everything here converts between the wire and the node; it knows
//! neither engines nor databases.

#![forbid(unsafe_code)]

mod body;
mod connection;
mod content;
mod control;
mod edge;
mod elsewhere;
mod places;
mod query;
mod request_id;
mod routing;
mod server;
mod tally;
mod tls;

pub use content::Content;
pub use elsewhere::{Check, Elsewhere};
pub use server::serve;

use std::fmt;
use std::sync::Arc;

use authority::Authority;

/// How the node shows itself.
#[derive(Clone)]
pub struct ApiConfig {
    /// What clients must send to use the control plane.
    pub api_key: String,
    /// What SDKs append to `<port>-<id>.` to name a port of a sandbox.
    pub domain: String,
    /// The host name of the dashboard; no port of a sandbox is served below it.
    pub dashboard_host: Option<String>,
    /// Offer what Sandbar adds to E2B; otherwise it is ignored as unknown.
    pub extensions: bool,
    /// Signs what TLS clients are shown; absent: only plain connections are served.
    pub authority: Option<Arc<Authority>>,
    /// Most connections of clients at once, tunnels included; further ones are closed.
    pub max_connections: usize,
    /// Most of them from one address, loopback excepted.
    pub max_connections_per_address: usize,
}

/// The key is a secret.
impl fmt::Debug for ApiConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiConfig")
            .field("domain", &self.domain)
            .field("extensions", &self.extensions)
            .finish_non_exhaustive()
    }
}
