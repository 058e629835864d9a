//! Transport: one HTTP client, deadlines, retries, and Connect calls and streams on top.

pub(crate) mod connect;
mod connection_pool;
mod http;
mod names;
mod response;
mod retry;

pub(crate) use http::{Call, Http, HttpOptions, Progress};
pub(crate) use response::{Failure, Refusal, read_json};
pub(crate) use retry::{Idempotency, MAX_BACKOFF};
