//! Messages between the loop and a model, in the form of Anthropic's Messages API: the richest of
//! the supported APIs, so that no conversion loses anything. Unknown blocks stay raw JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Block>,
}

/// One block of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    Text(String),
    ToolUse(ToolUse),
    ToolResult(ToolOutcome),
    /// Thinking blocks and others of a provider, passed through unchanged.
    Raw(Value),
}

/// A tool call requested by a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    pub id: String,
    pub name: String,
    pub input: Value,
    /// Unknown fields.
    pub extra: Map<String, Value>,
}

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    pub tool_use_id: String,
    pub content: Vec<Part>,
    pub is_error: bool,
}

/// One part of a tool's result.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(String),
    /// An image; the data is base64.
    Image {
        media_type: String,
        data: String,
    },
    Raw(Value),
}

/// Approximate tokens of an image at the size to which images are scaled.
const IMAGE_TOKENS: u64 = 1600;
/// Approximate characters per token; low, so that estimates are rather too high.
const CHARS_PER_TOKEN: u64 = 4;

impl Message {
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, content: vec![Block::Text(text.into())] }
    }

    /// The tool calls of a message, in order.
    pub fn calls(&self) -> impl Iterator<Item = &ToolUse> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolUse(call) => Some(call),
            _ => None,
        })
    }

    /// The tool results of a message, in order.
    pub fn results(&self) -> impl Iterator<Item = &ToolOutcome> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// All plain text, with blocks joined by newlines.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter_map(|block| match block {
                Block::Text(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        texts.join("\n")
    }

    /// Approximate number of tokens.
    pub fn tokens(&self) -> u64 {
        self.content.iter().map(Block::tokens).sum::<u64>() + 4
    }
}

impl ToolOutcome {
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self.content.iter().filter_map(Part::as_text).collect();
        texts.join("\n")
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.content.iter().map(Part::tokens).sum::<u64>() + 10
    }
}

fn tokens_for_chars(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX) / CHARS_PER_TOKEN
}

impl Block {
    fn tokens(&self) -> u64 {
        match self {
            Self::Text(text) => tokens_for_chars(text.len()),
            Self::ToolUse(call) => tokens_for_chars(call.name.len() + length(&call.input)) + 10,
            Self::ToolResult(result) => result.tokens(),
            Self::Raw(value) => tokens_for_chars(length(value)),
        }
    }
}

impl Part {
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn tokens(&self) -> u64 {
        match self {
            Self::Text(text) => tokens_for_chars(text.len()),
            Self::Image { .. } => IMAGE_TOKENS,
            Self::Raw(value) => tokens_for_chars(length(value)),
        }
    }
}

/// Approximate length as JSON, without serialising it.
fn length(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 5,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| length(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + length(value) + 4).sum::<usize>() + 2,
    }
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Wire<'a> {
            Text {
                text: &'a str,
            },
            ToolUse {
                id: &'a str,
                name: &'a str,
                input: &'a Value,
                #[serde(flatten)]
                extra: &'a Map<String, Value>,
            },
            ToolResult {
                tool_use_id: &'a str,
                content: &'a [Part],
                #[serde(skip_serializing_if = "std::ops::Not::not")]
                is_error: bool,
            },
        }
        let wire = match self {
            Self::Text(text) => Wire::Text { text },
            Self::ToolUse(ToolUse { id, name, input, extra }) => Wire::ToolUse { id, name, input, extra },
            Self::ToolResult(ToolOutcome { tool_use_id, content, is_error }) => {
                Wire::ToolResult { tool_use_id, content, is_error: *is_error }
            }
            Self::Raw(value) => return value.serialize(serializer),
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl From<Value> for Block {
    /// Never fails: unknown JSON becomes a raw block.
    fn from(value: Value) -> Self {
        let Value::Object(mut fields) = value else { return Self::Raw(value) };
        let text = |fields: &Map<String, Value>, name: &str| fields.get(name)?.as_str().map(str::to_owned);
        match fields.get("type").and_then(Value::as_str) {
            Some("text") if fields.len() == 2 => match text(&fields, "text") {
                Some(text) => Self::Text(text),
                None => Self::Raw(Value::Object(fields)),
            },
            Some("tool_use") => match (text(&fields, "id"), text(&fields, "name")) {
                (Some(id), Some(name)) => {
                    let input = fields.remove("input").unwrap_or_else(|| json!({}));
                    for known in ["type", "id", "name"] {
                        fields.remove(known);
                    }
                    Self::ToolUse(ToolUse { id, name, input, extra: fields })
                }
                _ => Self::Raw(Value::Object(fields)),
            },
            Some("tool_result") => match text(&fields, "tool_use_id") {
                Some(tool_use_id) => {
                    let content = match fields.remove("content") {
                        Some(Value::Array(parts)) => parts.into_iter().map(Part::from).collect(),
                        Some(Value::String(text)) => vec![Part::Text(text)],
                        _ => Vec::new(),
                    };
                    let is_error = fields.get("is_error").and_then(Value::as_bool).unwrap_or(false);
                    Self::ToolResult(ToolOutcome { tool_use_id, content, is_error })
                }
                None => Self::Raw(Value::Object(fields)),
            },
            _ => Self::Raw(Value::Object(fields)),
        }
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(tag = "type", rename_all = "snake_case")]
        enum Wire<'a> {
            Text { text: &'a str },
            Image { source: Source<'a> },
        }
        #[derive(Serialize)]
        struct Source<'a> {
            r#type: &'static str,
            media_type: &'a str,
            data: &'a str,
        }
        let wire = match self {
            Self::Text(text) => Wire::Text { text },
            Self::Image { media_type, data } => Wire::Image { source: Source { r#type: "base64", media_type, data } },
            Self::Raw(value) => return value.serialize(serializer),
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl From<Value> for Part {
    fn from(value: Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        match value["type"].as_str() {
            Some("text") => match text(&value["text"]) {
                Some(text) => Self::Text(text),
                None => Self::Raw(value),
            },
            Some("image") => {
                let source = &value["source"];
                match (source["type"].as_str(), text(&source["media_type"]), text(&source["data"])) {
                    (Some("base64"), Some(media_type), Some(data)) => Self::Image { media_type, data },
                    _ => Self::Raw(value),
                }
            }
            _ => Self::Raw(value),
        }
    }
}

impl From<&tools::Block> for Part {
    fn from(block: &tools::Block) -> Self {
        match block {
            tools::Block::Text(text) => Self::Text(text.clone()),
            tools::Block::Image(image) => Self::Image { media_type: image.media_type.to_owned(), data: image.base64() },
        }
    }
}

/// Serialises as a `tool_result` block.
impl Serialize for ToolOutcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Block::ToolResult(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolOutcome {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Block::deserialize(deserializer)? {
            Block::ToolResult(result) => Ok(result),
            _ => Err(serde::de::Error::custom("not a tool result")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_survives_serialisation() {
        let wire = json!([
            { "type": "thinking", "thinking": "hm", "signature": "c2ln", "new": [1, null] },
            { "type": "text", "text": "hello" },
            { "type": "text", "text": "cited", "citations": [] },
            { "type": "tool_use", "id": "a", "name": "bash", "input": { "command": "ls" }, "caller": { "type": "direct" } },
            { "type": "something_new", "x": 1 },
            { "type": "tool_result", "tool_use_id": "a", "content": [
                { "type": "text", "text": "x" },
                { "type": "image", "source": { "type": "base64", "media_type": "image/webp", "data": "UklG" } },
                { "type": "search_result", "y": 2 },
            ], "is_error": true },
            "not even an object",
        ]);
        let blocks: Vec<Block> = serde_json::from_value(wire.clone()).expect("anything is a block");
        assert_eq!(serde_json::to_value(&blocks).expect("blocks serialise"), wire);
        assert!(matches!(&blocks[3], Block::ToolUse(call) if call.extra.contains_key("caller")));
        assert!(matches!(&blocks[0], Block::Raw(_)) && matches!(&blocks[2], Block::Raw(_)));
    }
}
