//! Serialises a request. Tools, then system prompt, then messages, always in the same order and
//! form, because the provider caches equal prefixes. Cache marks follow tools and system prompt,
//! and the last two user messages, so that the next request finds the mark of this one.

use serde::Serialize;
use serde_json::Value;

use crate::message::Role;
use crate::model::{ModelError, Request};

/// Everything before the messages.
#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    tools: &'a [Value],
    system: [System<'a>; 1],
}

#[derive(Serialize)]
struct System<'a> {
    r#type: &'static str,
    text: &'a str,
    cache_control: Mark,
}

#[derive(Serialize)]
struct Mark {
    r#type: &'static str,
}

/// Marked messages; with the mark after the system prompt they stay within the provider's limit of
/// four.
const MARKED_MESSAGES: usize = 2;
/// The end of a message, without and with a mark on its last block. Inserted as text, so that a
/// message has the same bytes with and without it.
const END: &str = "}]}";
const MARKED_END: &str = r#","cache_control":{"type":"ephemeral"}}]}"#;

/// The body, for a turn or for a token count.
pub(super) fn body(model: &str, request: &Request<'_>, turn: bool) -> Result<String, ModelError> {
    let wrong = |error: serde_json::Error| ModelError::Refused(format!("the request cannot be written: {error}"));
    let system = System { r#type: "text", text: request.system, cache_control: Mark { r#type: "ephemeral" } };
    let head = Head {
        model,
        max_tokens: turn.then_some(request.max_tokens),
        stream: turn.then_some(true),
        tools: request.tools,
        system: [system],
    };
    let mut body = serde_json::to_string(&head).map_err(wrong)?;
    body.truncate(body.len() - 1);
    body.push_str(",\"messages\":[");
    let of_user = request.messages.iter().enumerate().rev().filter(|(_, message)| message.role == Role::User);
    let marked: Vec<usize> = of_user.take(MARKED_MESSAGES).map(|(index, _)| index).collect();
    for (index, message) in request.messages.iter().enumerate() {
        if index > 0 {
            body.push(',');
        }
        body.push_str(&serde_json::to_string(message).map_err(wrong)?);
        if marked.contains(&index) && body.ends_with(END) {
            body.truncate(body.len() - END.len());
            body.push_str(MARKED_END);
        }
    }
    body.push_str("]}");
    Ok(body)
}
