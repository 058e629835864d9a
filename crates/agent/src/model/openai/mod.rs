//! Any endpoint that speaks OpenAI's chat completions: streamed, with tools and pictures.

mod assemble;
mod body;

use async_trait::async_trait;
use sdk::Secret;
use url::Url;

use super::endpoint::{Endpoint, json};
use super::http::{self, Step};
use super::{Model, ModelError, Price, Request, Tell, Turn};
use assemble::Assembly;

/// Nothing is known of such a model; this is what most have at least.
const WINDOW: u64 = 128_000;
const LONGEST_ANSWER: u64 = 16_000;

/// A model behind such an endpoint.
#[derive(Debug)]
pub struct OpenAi {
    endpoint: Endpoint,
    key: Option<Secret>,
}

impl OpenAi {
    /// `base` is what stands before `/chat/completions`, mostly ending in `/v1`. Servers of one's own often need no key.
    ///
    /// # Errors
    /// No HTTP client could be made.
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

    fn longest_answer(&self) -> u64 {
        LONGEST_ANSWER
    }

    fn price(&self) -> Option<Price> {
        None
    }

    async fn turn(&self, request: Request<'_>, tell: Tell<'_>) -> Result<Turn, ModelError> {
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
            // Some endpoints just end.
            Err(ModelError::Interrupted(_)) if assembly.is_whole() => {}
            read => read?,
        }
        assembly.finish()
    }
}
