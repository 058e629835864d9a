//! Egress of a sandbox above TCP: HTTP requests whose headers rules set, also inside TLS, and
//! tunnels through a user's proxy.
//!
//! ```text
//!   inside ── TLS, our certificate ── request ── headers set ── TLS, verified ── outside
//! ```
//! This crate knows neither sandboxes nor policies: a [`RequestPolicy`] decides on each request.
//! The value of a header is never sent into the sandbox, and appears in no error and no `Debug`.

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

pub use exchange::{Connection, RequestOutcome, RequestPolicy, Security, serve};
pub use headers::{Headers, InvalidHeader};
pub use proxy::{Destination, InvalidProxy, Proxy, ProxyError, ProxyTls};
pub use refusal::Refusal;
pub use stream::{Dial, Outside, Prefixed, Stream};
pub use trust::{Trust, TrustError};
