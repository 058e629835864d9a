//! Models: one small trait, and three ways to get one.

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
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{Block, Message};

pub use catalog::{InvalidPrice, Known, Price, known};
pub use choice::{Choice, ChoiceError, Keys};
pub use priced::with_price;

/// Something that takes turns.
#[async_trait]
pub trait Model: Send + Sync {
    /// As [`Choice`] writes it, for example `anthropic:claude-opus-5-5`.
    fn name(&self) -> &str;

    /// How many tokens fit into one conversation.
    fn window(&self) -> u64;

    /// The most tokens of one answer.
    fn longest_answer(&self) -> u64;

    /// [`None`] when the price is unknown: then no budget in money can be kept. [`with_price`] sets
    /// one.
    fn price(&self) -> Option<Price>;

    /// Takes one turn, whole or not at all. `tell` hears of it as it comes; after an error it was told too much. Dropping the
    /// future ends the request.
    async fn turn(&self, request: Request<'_>, tell: Tell<'_>) -> Result<Turn, ModelError>;

    /// How many tokens a request is, where the provider tells.
    async fn count(&self, _request: Request<'_>) -> Result<Option<u64>, ModelError> {
        Ok(None)
    }
}

/// What a model is asked. The order of fields is the order of the prefix: what changes most comes last.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// In the form that Anthropic takes.
    pub tools: &'a [Value],
    pub system: &'a str,
    pub messages: &'a [Message],
    pub max_tokens: u64,
    pub purpose: Purpose,
}

/// What a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Work,
    /// The last message asks for a summary of all before it.
    Summary,
}

/// A piece of an answer on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    Text(&'a str),
    Thinking(&'a str),
}

/// Who hears of an answer while it comes.
pub type Tell<'t> = &'t (dyn for<'a> Fn(Delta<'a>) + Send + Sync);

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub content: Vec<Block>,
    pub stop: ModelStop,
    pub usage: Usage,
    /// Calls in `content` that must not be made, by id. Their inputs are empty objects.
    pub faults: Vec<(String, Fault)>,
}

/// What is wrong with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The answer ended before the call did.
    Unfinished,
    /// What should be its input is no JSON object.
    Invalid { problem: String, begins: String },
}

/// Why a model stopped speaking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelStop {
    EndTurn,
    ToolUse,
    /// The answer was as long as it may be.
    MaxTokens,
    /// It wants to go on in another turn.
    PauseTurn,
    Refusal,
    /// The conversation is full.
    ContextFull,
}

/// Tokens of one turn, or of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Read anew.
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
}

impl Usage {
    /// Everything the model has read.
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

/// A turn that was not taken. No message has a key in it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Try again, not before the time it names.
    #[error("the model's provider is busy: {message}")]
    Busy { message: String, retry_after: Option<Duration> },
    /// The answer broke off or made no sense. Try again.
    #[error("the model's answer broke off: {0}")]
    Interrupted(String),
    /// Say less, then try again.
    #[error("the conversation is too long for the model: {0}")]
    TooLong(String),
    /// Trying again leads to the same.
    #[error("the model's provider refuses the request: {0}")]
    Refused(String),
}
