//! Client for endpoints with OpenAI's chat completions API: streamed, with tools and images.

mod assemble;
mod body;

use async_trait::async_trait;
use sdk::Secret;
use url::Url;

use super::endpoint::{Endpoint, json};
use super::http::{self, Step};
use super::{DeltaSink, Model, ModelError, ModelPrice, Request, Turn};
use assemble::Assembly;

/// Limits of an unknown model: most have at least these.
const WINDOW: u64 = 128_000;
const MAX_ANSWER_TOKENS: u64 = 16_000;

/// A model behind such an endpoint.
#[derive(Debug)]
pub struct OpenAi {
    endpoint: Endpoint,
    key: Option<Secret>,
}

impl OpenAi {
    /// `base` is the URL before `/chat/completions`, mostly ending in `/v1`. Self-hosted servers
    /// often need no key.
    ///
    /// # Errors
    /// [`ModelError`] if the HTTP client cannot be created.
    pub fn new(model: impl Into<String>, base: Url, key: Option<Secret>) -> Result<Self, ModelError> {
        let model = model.into();
        Ok(Self { endpoint: Endpoint::new(format!("openai:{model}@{base}"), model, base)?, key })
    }
}

#[async_trait]
impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.endpoint.name
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn max_answer_tokens(&self) -> u64 {
        MAX_ANSWER_TOKENS
    }

    fn price(&self) -> Option<ModelPrice> {
        None
    }

    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        let mut post = self.endpoint.post("chat/completions");
        if let Some(key) = &self.key {
            post = post.bearer_auth(key.expose());
        }
        let response = http::send(post, body::body(&self.endpoint.model, &request).to_string()).await?;
        let mut assembly = Assembly::default();
        let read = http::events(response, |event| {
            if event.data.trim() == "[DONE]" {
                return Ok(Step::Done);
            }
            assembly.take(&json(&event)?, tell)?;
            Ok(Step::Next)
        })
        .await;
        match read {
            // Some endpoints end the stream without a final event.
            Err(ModelError::Interrupted(_)) if assembly.is_whole() => {}
            read => read?,
        }
        assembly.finish()
    }
}
