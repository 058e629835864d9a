//! Assembles a response from the events of its stream.

use serde_json::{Map, Value, json};

use crate::message::Block;
use crate::model::call_input::parse_input;
use crate::model::http::error_from_kind;
use crate::model::{Delta, DeltaSink, ModelError, ModelStop, Turn, Usage};

#[derive(Debug, Default)]
pub(super) struct Assembly {
    blocks: Vec<Open>,
    stop: Option<ModelStop>,
    usage: Usage,
}

/// A block that is still being streamed.
#[derive(Debug)]
struct Open {
    block: Map<String, Value>,
    /// The input of a call, as streamed so far.
    json: String,
}

fn invalid_stream(what: &str) -> ModelError {
    ModelError::Interrupted(format!("the stream makes no sense: {what}"))
}

impl Assembly {
    /// Processes one event; true if it was the last.
    pub(super) fn take(&mut self, event: Value, tell: DeltaSink<'_>) -> Result<bool, ModelError> {
        match event["type"].as_str() {
            Some("message_start") => self.count(&event["message"]["usage"]),
            Some("content_block_start") => self.open(event)?,
            Some("content_block_delta") => self.extend(&event, tell)?,
            Some("message_delta") => {
                self.count(&event["usage"]);
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop = Some(parse_stop_reason(reason));
                }
            }
            Some("message_stop") => return Ok(true),
            Some("error") => {
                let text = |field: &str| event["error"][field].as_str().unwrap_or("error").to_owned();
                return Err(error_from_kind(&text("type"), &text("message")));
            }
            // `content_block_stop`, `ping`, and future events.
            Some(_) => {}
            None => return Err(invalid_stream("an event without a type")),
        }
        Ok(false)
    }

    /// Counts are totals, so the last one holds.
    fn count(&mut self, usage: &Value) {
        let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } = &mut self.usage;
        for (place, field) in [
            (input_tokens, "input_tokens"),
            (output_tokens, "output_tokens"),
            (cache_read_tokens, "cache_read_input_tokens"),
            (cache_write_tokens, "cache_creation_input_tokens"),
        ] {
            if let Some(number) = usage[field].as_u64() {
                *place = number;
            }
        }
    }

    fn open(&mut self, mut event: Value) -> Result<(), ModelError> {
        let Value::Object(block) = event["content_block"].take() else {
            return Err(invalid_stream("a block that is none"));
        };
        if event["index"].as_u64() != u64::try_from(self.blocks.len()).ok() {
            return Err(invalid_stream("blocks out of order"));
        }
        self.blocks.push(Open { block, json: String::new() });
        Ok(())
    }

    fn extend(&mut self, event: &Value, tell: DeltaSink<'_>) -> Result<(), ModelError> {
        let index = event["index"].as_u64().and_then(|index| usize::try_from(index).ok());
        let open =
            index.and_then(|index| self.blocks.get_mut(index)).ok_or_else(|| invalid_stream("a piece of no block"))?;
        let delta = &event["delta"];
        let text = |field: &str| delta[field].as_str().unwrap_or_default();
        match delta["type"].as_str() {
            Some("text_delta") => {
                open.append("text", text("text"));
                tell(Delta::Text(text("text")));
            }
            Some("thinking_delta") => {
                open.append("thinking", text("thinking"));
                tell(Delta::Thinking(text("thinking")));
            }
            Some("signature_delta") => open.append("signature", text("signature")),
            Some("input_json_delta") => open.json.push_str(text("partial_json")),
            Some("citations_delta") => {
                let citations = open.block.entry("citations").or_insert_with(|| json!([]));
                if let Some(citations) = citations.as_array_mut() {
                    citations.push(delta["citation"].clone());
                }
            }
            other => tracing::debug!(kind = other, "an unknown piece of an answer is left out"),
        }
        Ok(())
    }

    /// The complete response.
    pub(super) fn finish(self) -> Result<Turn, ModelError> {
        let stop = self.stop.ok_or_else(|| invalid_stream("no reason for its end"))?;
        let mut turn = Turn { content: Vec::new(), stop, usage: self.usage, faults: Vec::new() };
        let last = self.blocks.len().saturating_sub(1);
        for (index, Open { mut block, json }) in self.blocks.into_iter().enumerate() {
            let is_call = block.get("type").and_then(Value::as_str) == Some("tool_use");
            let cut = stop == ModelStop::MaxTokens && index == last;
            if is_call && (!json.is_empty() || cut) {
                let (input, fault) = parse_input(&json, cut);
                block.insert("input".into(), input);
                if let (Some(fault), Some(id)) = (fault, block.get("id").and_then(Value::as_str)) {
                    turn.faults.push((id.to_owned(), fault));
                }
            } else if !json.is_empty() {
                block.insert("input".into(), serde_json::from_str(&json).unwrap_or_else(|_| json!({})));
            }
            // The API rejects an empty text when it is sent back.
            let says_nothing = |block: &Block| matches!(block, Block::Text(text) if text.trim().is_empty());
            turn.content.extend(Some(Block::from(Value::Object(block))).filter(|block| !says_nothing(block)));
        }
        Ok(turn)
    }
}

impl Open {
    fn append(&mut self, field: &str, text: &str) {
        match self.block.entry(field).or_insert_with(|| json!("")) {
            Value::String(so_far) => so_far.push_str(text),
            other => *other = json!(text),
        }
    }
}

fn parse_stop_reason(reason: &str) -> ModelStop {
    match reason {
        "tool_use" => ModelStop::ToolUse,
        "max_tokens" => ModelStop::MaxTokens,
        "pause_turn" => ModelStop::PauseTurn,
        "refusal" => ModelStop::Refusal,
        "model_context_window_exceeded" => ModelStop::ContextFull,
        // `end_turn`, `stop_sequence`, and future reasons: the response is complete.
        _ => ModelStop::EndTurn,
    }
}
