//! How requests travel: one HTTP client, deadlines, safe repeats, and Connect's calls and streams on top.

mod answer;
pub(crate) mod connect;
mod http;
mod lanes;
mod names;
mod retry;

pub(crate) use answer::{Failure, Refusal, read_json};
pub(crate) use http::{Call, Http, HttpOptions, Progress};
pub(crate) use retry::{LONGEST_WAIT, Repeat};
