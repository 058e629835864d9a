//! What a connection that leaves a sandbox becomes above TCP: HTTP requests that get headers on the way, also inside TLS, and
//! tunnels through somebody's proxy.
//!
//! ```text
//!   inside ── TLS, our certificate ── request ── headers set ── TLS, verified ── outside
//! ```
//! It knows neither sandboxes nor policies: a [`Judge`] decides about each request. What a header is filled with never goes
//! inwards, and shows in no error and no `Debug`.

#![forbid(unsafe_code)]

mod exchange;
mod forward;
mod headers;
mod host;
mod proxy;
mod refusal;
mod stream;
mod trust;
mod upstream;

pub use exchange::{Connection, Judge, Security, Told, serve};
pub use headers::{Headers, InvalidHeader};
pub use proxy::{Destination, InvalidProxy, Proxy, ProxyError, ProxyTls};
pub use refusal::Refusal;
pub use stream::{Dial, Outside, Prefixed, Stream};
pub use trust::{Trust, TrustError};
