//! A model that is reached over HTTP: what all families of endpoints share.

use std::fmt;

use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use url::Url;

use super::ModelError;
use super::http;
use super::sse::SseEvent;

pub(super) struct Endpoint {
    client: Client,
    /// As [`Choice`](super::Choice) writes it.
    pub(super) name: String,
    /// As the endpoint calls it.
    pub(super) model: String,
    base: Url,
}

impl Endpoint {
    pub(super) fn new(name: String, model: String, base: Url) -> Result<Self, ModelError> {
        Ok(Self { client: http::client()?, name, model, base })
    }

    /// A request to a path below the base.
    pub(super) fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}/{path}", self.base.as_str().trim_end_matches('/')))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What an event carries.
pub(super) fn json(event: &SseEvent) -> Result<Value, ModelError> {
    serde_json::from_str(&event.data).map_err(|error| ModelError::Interrupted(format!("an event is no JSON: {error}")))
}
