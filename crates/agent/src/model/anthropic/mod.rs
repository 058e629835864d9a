//! Anthropic's Messages API, spoken by a client of our own: streamed turns, tool use, pictures in results, thinking passed
//! through untouched, prompt caching, and errors that say whether to try again.

mod assemble;
mod body;

use std::fmt;

use async_trait::async_trait;
use reqwest::{Client, RequestBuilder};
use sdk::Secret;
use serde_json::Value;
use url::Url;

use super::http::{self, Step};
use super::{Model, ModelError, Price, Request, Tell, Turn, catalog};
use assemble::Assembly;
use body::body;

const VERSION: &str = "2023-06-01";
pub const DEFAULT_URL: &str = "https://api.anthropic.com";
/// What a model has of which nothing is known: the least that any current one has.
const WINDOW: u64 = 200_000;
const LONGEST_ANSWER: u64 = 64_000;

/// A Claude model.
pub struct Anthropic {
    client: Client,
    name: String,
    model: String,
    base: Url,
    key: Secret,
}

impl fmt::Debug for Anthropic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anthropic")
            .field("model", &self.model)
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}

impl Anthropic {
    /// `base` is without `/v1`, as `ANTHROPIC_BASE_URL` is.
    ///
    /// # Errors
    /// No HTTP client could be made.
    pub fn new(model: impl Into<String>, base: Url, key: Secret) -> Result<Self, ModelError> {
        let model = model.into();
        Ok(Self { client: http::client()?, name: format!("anthropic:{model}"), model, base, key })
    }

    fn post(&self, path: &str) -> RequestBuilder {
        let url = format!("{}/v1/{path}", self.base.as_str().trim_end_matches('/'));
        self.client.post(url).header("x-api-key", self.key.expose()).header("anthropic-version", VERSION)
    }
}

#[async_trait]
impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.name
    }

    fn window(&self) -> u64 {
        catalog::known(&self.model).map_or(WINDOW, |known| known.window)
    }

    fn longest_answer(&self) -> u64 {
        catalog::known(&self.model).map_or(LONGEST_ANSWER, |known| known.longest_answer)
    }

    fn price(&self) -> Option<Price> {
        catalog::known(&self.model).map(catalog::Known::price)
    }

    async fn turn(&self, request: Request<'_>, tell: Tell<'_>) -> Result<Turn, ModelError> {
        let response = http::send(self.post("messages"), body(&self.model, &request, true)?).await?;
        let mut assembly = Assembly::default();
        http::events(response, |event| {
            let value: Value = serde_json::from_str(&event.data)
                .map_err(|error| ModelError::Interrupted(format!("an event is no JSON: {error}")))?;
            Ok(if assembly.take(value, tell)? { Step::Done } else { Step::Next })
        })
        .await?;
        assembly.finish()
    }

    async fn count(&self, request: Request<'_>) -> Result<Option<u64>, ModelError> {
        let response = http::send(self.post("messages/count_tokens"), body(&self.model, &request, false)?).await?;
        let text = response.text().await.map_err(|_| ModelError::Interrupted("the count did not arrive".into()))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| ModelError::Interrupted(format!("the count is no JSON: {error}")))?;
        Ok(value["input_tokens"].as_u64())
    }
}
