//! Shared parts of models that are reached over HTTP.

use std::fmt;

use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use url::Url;

use super::ModelError;
use super::http;
use super::sse::SseEvent;

pub(super) struct Endpoint {
    client: Client,
    /// In the syntax of [`ModelChoice`](super::ModelChoice).
    pub(super) name: String,
    /// The endpoint's own name of the model.
    pub(super) model: String,
    base: Url,
}

impl Endpoint {
    pub(super) fn new(name: String, model: String, base: Url) -> Result<Self, ModelError> {
        Ok(Self { client: http::client()?, name, model, base })
    }

    /// A POST request to a path below the base URL.
    pub(super) fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}/{path}", self.base.as_str().trim_end_matches('/')))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Parses the data of an event.
pub(super) fn json(event: &SseEvent) -> Result<Value, ModelError> {
    serde_json::from_str(&event.data).map_err(|error| ModelError::Interrupted(format!("an event is no JSON: {error}")))
}
