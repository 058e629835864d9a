//! Assembles a response from the chunks of a chat completion.

use serde_json::{Map, Value};

use crate::message::{Block, ToolUse};
use crate::model::call_input::parse_input;
use crate::model::http::error_from_kind;
use crate::model::{Delta, DeltaSink, ModelError, ModelStop, Turn, Usage};

#[derive(Debug, Default)]
pub(super) struct Assembly {
    text: String,
    calls: Vec<Call>,
    stop: Option<ModelStop>,
    usage: Usage,
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Assembly {
    pub(super) fn take(&mut self, chunk: &Value, tell: DeltaSink<'_>) -> Result<(), ModelError> {
        if let Some(message) = chunk["error"]["message"].as_str() {
            return Err(error_from_kind(chunk["error"]["type"].as_str().unwrap_or("error"), message));
        }
        if chunk["usage"].is_object() {
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            let cached = number(&chunk["usage"]["prompt_tokens_details"]["cached_tokens"]);
            self.usage = Usage {
                input_tokens: number(&chunk["usage"]["prompt_tokens"]).saturating_sub(cached),
                output_tokens: number(&chunk["usage"]["completion_tokens"]),
                cache_read_tokens: cached,
                cache_write_tokens: 0,
            };
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str() {
            self.text.push_str(text);
            tell(Delta::Text(text));
        }
        // Endpoints with visible reasoning use one of these fields.
        if let Some(text) = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str()) {
            tell(Delta::Thinking(text));
        }
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
            if index > self.calls.len() {
                return Err(ModelError::Interrupted("the stream makes no sense: calls out of order".into()));
            }
            if index == self.calls.len() {
                self.calls.push(Call::default());
            }
            let call = &mut self.calls[index];
            for (place, value) in [
                (&mut call.id, &piece["id"]),
                (&mut call.name, &piece["function"]["name"]),
                (&mut call.arguments, &piece["function"]["arguments"]),
            ] {
                place.push_str(value.as_str().unwrap_or_default());
            }
        }
        match choice["finish_reason"].as_str() {
            None => {}
            Some("length") => self.stop = Some(ModelStop::MaxTokens),
            Some("content_filter") => self.stop = Some(ModelStop::Refusal),
            Some("tool_calls" | "function_call") => self.stop = Some(ModelStop::ToolUse),
            Some(_) => self.stop = Some(ModelStop::EndTurn),
        }
        Ok(())
    }

    pub(super) fn is_whole(&self) -> bool {
        self.stop.is_some()
    }

    pub(super) fn finish(self) -> Result<Turn, ModelError> {
        let stop = self.stop.ok_or_else(|| ModelError::Interrupted("the stream gave no reason for its end".into()))?;
        let mut turn = Turn { content: Vec::new(), stop, usage: self.usage, faults: Vec::new() };
        if !self.text.trim().is_empty() {
            turn.content.push(Block::Text(self.text));
        }
        let last = self.calls.len().saturating_sub(1);
        for (index, Call { id, name, arguments }) in self.calls.into_iter().enumerate() {
            // Some endpoints omit the id.
            let id = if id.is_empty() { format!("call_{:016x}", rand::random::<u64>()) } else { id };
            let cut = stop == ModelStop::MaxTokens && index == last;
            let arguments = if arguments.trim().is_empty() && !cut { "{}" } else { &arguments };
            let (input, fault) = parse_input(arguments, cut);
            turn.faults.extend(fault.map(|fault| (id.clone(), fault)));
            turn.content.push(Block::ToolUse(ToolUse { id, name, input, extra: Map::new() }));
        }
        Ok(turn)
    }
}
