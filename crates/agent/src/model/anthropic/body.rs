//! A request on the wire. Tools, then system prompt, then messages, written in the same order and form every time: the cache
//! of the provider lives on equal beginnings. Marks say up to where to keep: after tools and system, and after the last
//! two messages of the user, so that the next request finds the mark of this one.

use serde::Serialize;
use serde_json::{Value, json};

use crate::message::{Message, Role};
use crate::model::{ModelError, Request};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    tools: &'a [Value],
    system: [Value; 1],
    messages: Vec<Wire<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Wire<'a> {
    Plain(&'a Message),
    Marked(Value),
}

/// Marks on messages; with the one after the system prompt they are within the provider's limit of four.
const MARKED_MESSAGES: usize = 2;

fn mark() -> Value {
    json!({ "type": "ephemeral" })
}

/// The body, for a turn or for a count of its tokens.
pub(super) fn body(model: &str, request: &Request<'_>, turn: bool) -> Result<String, ModelError> {
    let of_user = request.messages.iter().enumerate().rev().filter(|(_, message)| message.role == Role::User);
    let marked: Vec<usize> = of_user.take(MARKED_MESSAGES).map(|(index, _)| index).collect();
    let wrong = |error: serde_json::Error| ModelError::Refused(format!("the request cannot be written: {error}"));
    let mut messages = Vec::with_capacity(request.messages.len());
    for (index, message) in request.messages.iter().enumerate() {
        if !marked.contains(&index) {
            messages.push(Wire::Plain(message));
            continue;
        }
        let mut value = serde_json::to_value(message).map_err(wrong)?;
        if let Some(last) = value["content"].as_array_mut().and_then(|blocks| blocks.last_mut()) {
            last["cache_control"] = mark();
        }
        messages.push(Wire::Marked(value));
    }
    let body = Body {
        model,
        max_tokens: turn.then_some(request.max_tokens),
        stream: turn.then_some(true),
        tools: request.tools,
        system: [json!({ "type": "text", "text": request.system, "cache_control": mark() })],
        messages,
    };
    serde_json::to_string(&body).map_err(wrong)
}
