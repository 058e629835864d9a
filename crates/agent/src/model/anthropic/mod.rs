//! Client of Anthropic's Messages API: streamed turns, tool use, images in results, thinking passed
//! through unchanged, prompt caching, and errors that tell whether to retry.

mod assemble;
mod body;

use async_trait::async_trait;
use reqwest::Response;
use sdk::Secret;
use serde_json::Value;
use url::Url;

use super::catalog::{self, ModelInfo};
use super::endpoint::{Endpoint, json};
use super::http::{self, Step};
use super::{DeltaSink, Model, ModelError, ModelPrice, Request, Turn};
use assemble::Assembly;
use body::body;

const VERSION: &str = "2023-06-01";
pub const DEFAULT_URL: &str = "https://api.anthropic.com";
/// Limits of an unknown model: the least of all current ones.
const WINDOW: u64 = 200_000;
const MAX_ANSWER_TOKENS: u64 = 64_000;

/// A Claude model.
#[derive(Debug)]
pub struct Anthropic {
    endpoint: Endpoint,
    key: Secret,
}

impl Anthropic {
    /// `base` excludes `/v1`, as in `ANTHROPIC_BASE_URL`.
    ///
    /// # Errors
    /// [`ModelError`] if the HTTP client cannot be created.
    pub fn new(model: impl Into<String>, base: Url, key: Secret) -> Result<Self, ModelError> {
        let model = model.into();
        Ok(Self { endpoint: Endpoint::new(format!("anthropic:{model}"), model, base)?, key })
    }

    fn known(&self) -> Option<&'static ModelInfo> {
        catalog::find_model(&self.endpoint.model)
    }

    async fn send(&self, path: &str, body: String) -> Result<Response, ModelError> {
        let post = self.endpoint.post(path);
        http::send(post.header("x-api-key", self.key.expose()).header("anthropic-version", VERSION), body).await
    }
}

#[async_trait]
impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.endpoint.name
    }

    fn window(&self) -> u64 {
        self.known().map_or(WINDOW, |known| known.window)
    }

    fn max_answer_tokens(&self) -> u64 {
        self.known().map_or(MAX_ANSWER_TOKENS, |known| known.max_answer_tokens)
    }

    fn price(&self) -> Option<ModelPrice> {
        self.known().map(ModelInfo::price)
    }

    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        let response = self.send("v1/messages", body(&self.endpoint.model, &request, true)?).await?;
        let mut assembly = Assembly::default();
        http::events(response, |event| Ok(if assembly.take(json(&event)?, tell)? { Step::Done } else { Step::Next }))
            .await?;
        assembly.finish()
    }

    async fn count(&self, request: Request<'_>) -> Result<Option<u64>, ModelError> {
        let response = self.send("v1/messages/count_tokens", body(&self.endpoint.model, &request, false)?).await?;
        let text = response.text().await.map_err(|_| ModelError::Interrupted("the count did not arrive".into()))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| ModelError::Interrupted(format!("the count is no JSON: {error}")))?;
        Ok(value["input_tokens"].as_u64())
    }
}
