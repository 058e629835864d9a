//! Models: one small trait with three implementations.

pub mod anthropic;
mod call_input;
mod catalog;
mod choice;
mod endpoint;
mod http;
pub mod openai;
mod priced;
pub mod scripted;
mod sse;

use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{Block, Message};

pub use catalog::{InvalidPrice, ModelInfo, ModelPrice, find_model};
pub use choice::{ChoiceError, Keys, ModelChoice};
pub use priced::with_price;

/// A language model.
#[async_trait]
pub trait Model: Send + Sync {
    /// In the syntax of [`ModelChoice`], for example `anthropic:claude-opus-5-5`.
    fn name(&self) -> &str;

    /// Context window in tokens.
    fn window(&self) -> u64;

    /// Most tokens of one response.
    fn max_answer_tokens(&self) -> u64;

    /// [`None`] if the price is unknown: then no budget in dollars can be enforced. [`with_price`]
    /// sets one.
    fn price(&self) -> Option<ModelPrice>;

    /// Requests one response, whole or not at all. `tell` receives deltas as they arrive; after an
    /// error they are void. Dropping the future cancels the request.
    ///
    /// # Errors
    /// [`ModelError`], whose variants tell whether to retry.
    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError>;

    /// The number of tokens of a request, if the provider counts them.
    ///
    /// # Errors
    /// [`ModelError`] if the provider fails.
    async fn count(&self, _request: Request<'_>) -> Result<Option<u64>, ModelError> {
        Ok(None)
    }
}

/// A request to a model. The order of fields is the order of the cached prefix: what changes most
/// comes last.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// In Anthropic's format.
    pub tools: &'a [Value],
    pub system: &'a str,
    pub messages: &'a [Message],
    pub max_tokens: u64,
    pub purpose: Purpose,
}

/// Purpose of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Work,
    /// The last message asks for a summary of the conversation.
    Summary,
}

/// A part of a response in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    Text(&'a str),
    Thinking(&'a str),
}

/// Receives the deltas of a response.
pub type DeltaSink<'t> = &'t (dyn for<'a> Fn(Delta<'a>) + Send + Sync);

/// A model's response.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub content: Vec<Block>,
    pub stop: ModelStop,
    pub usage: Usage,
    /// Calls in `content` that must not be executed, by id. Their inputs are empty objects.
    pub faults: Vec<(String, Fault)>,
}

/// What is wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The response ended before the call did.
    Unfinished,
    /// The input is not a JSON object.
    Invalid { problem: String, begins: String },
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStop {
    EndTurn,
    ToolUse,
    /// The response reached its token limit.
    MaxTokens,
    /// The model continues in another turn.
    PauseTurn,
    Refusal,
    /// The context window is full.
    ContextFull,
}

/// Token counts of one turn, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TokenUsage")]
pub struct Usage {
    /// Not read from the cache.
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
}

impl Usage {
    /// All tokens that the model has read.
    pub fn prompt(self) -> u64 {
        self.input_tokens + self.cache_read_tokens + self.cache_write_tokens
    }

    pub fn total(self) -> u64 {
        self.prompt() + self.output_tokens
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.input_tokens += more.input_tokens;
        self.output_tokens += more.output_tokens;
        self.cache_read_tokens += more.cache_read_tokens;
        self.cache_write_tokens += more.cache_write_tokens;
    }
}

/// A turn that failed. No message contains a key.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Retry, not before the given time.
    #[error("the model's provider is busy: {message}")]
    Busy { message: String, retry_after: Option<Duration> },
    /// The response broke off or was invalid. Retry.
    #[error("the model's answer broke off: {0}")]
    Interrupted(String),
    /// Shorten the conversation, then retry.
    #[error("the conversation is too long for the model: {0}")]
    TooLong(String),
    /// A retry would fail the same way.
    #[error("the model's provider refuses the request: {0}")]
    Refused(String),
}
