//! HTTP requests of a sandbox, read one by one, also inside TLS: rules set their headers.
//!
//! ```text
//!   inside ── TLS, our certificate ── request ── headers set ── TLS, verified ── outside
//! ```
//! This module knows neither sandboxes nor policies: a [`RequestPolicy`] decides on each request.
//! The value of a header is never sent into the sandbox, and appears in no error and no `Debug`.

mod exchange;
mod forward;
mod headers;
mod host;
mod refusal;
mod upstream;

pub(crate) use exchange::{Connection, RequestOutcome, RequestPolicy, Security, serve};
pub use headers::{Headers, InvalidHeader};
pub(crate) use refusal::Refusal;
