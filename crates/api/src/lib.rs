//! The HTTP interface of a node, compatible with E2B, on one listener: the control plane, and the
//! edge that forwards to ports of sandboxes. Other requests go to the [`Fallback`] service.
//!
//! [`routing`] decides which of them a request is for. This crate converts between the wire and the
//! node; it knows neither engines nor databases.

#![forbid(unsafe_code)]

mod body;
mod connection;
mod connection_limit;
mod content;
mod control;
mod edge;
mod fallback;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod query;
mod request_id;
mod routing;
mod server;
mod tally;
mod tls;

pub use content::Content;
pub use fallback::{Fallback, PartCheck};
pub use server::serve;

use std::fmt;
use std::sync::Arc;

use ca::Authority;

/// Configuration of the HTTP interface.
#[derive(Clone)]
pub struct ApiConfig {
    /// The key that clients must send to use the control plane.
    pub api_key: String,
    /// The domain that SDKs append to `<port>-<id>.` to name a port of a sandbox.
    pub domain: String,
    /// The host name of the dashboard; no port of a sandbox is served below it.
    pub dashboard_host: Option<String>,
    /// Serve Sandbar's extensions of E2B; otherwise they are ignored as unknown.
    pub extensions: bool,
    /// Signs certificates for TLS clients; without it only plain connections are served.
    pub authority: Option<Arc<Authority>>,
    /// Most connections of clients at once, including tunnels; further ones are closed.
    pub max_connections: usize,
    /// Most connections from one address, except for loopback.
    pub max_connections_per_address: usize,
}

/// Without the key, which is a secret.
impl fmt::Debug for ApiConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiConfig")
            .field("domain", &self.domain)
            .field("extensions", &self.extensions)
            .finish_non_exhaustive()
    }
}
