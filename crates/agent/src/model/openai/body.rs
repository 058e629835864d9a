//! Serialises a conversation for chat completions. Tool results are separate messages there and
//! cannot contain images, which follow in a user message.

use serde_json::{Value, json};

use crate::message::{Block, Message, Part, Role};
use crate::model::Request;

pub(super) fn body(model: &str, request: &Request<'_>) -> Value {
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({ "type": "function", "function": {
                "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"],
            } })
        })
        .collect();
    let mut messages = vec![json!({ "role": "system", "content": request.system })];
    for message in request.messages {
        match message.role {
            Role::Assistant => messages.push(assistant_message(message)),
            Role::User => push_user_messages(message, &mut messages),
        }
    }
    json!({
        "model": model, "max_tokens": request.max_tokens, "stream": true, "stream_options": { "include_usage": true },
        "tools": tools, "messages": messages,
    })
}

fn assistant_message(message: &Message) -> Value {
    let calls: Vec<Value> = message
        .calls()
        .map(|call| {
            let function = json!({ "name": call.name, "arguments": call.input.to_string() });
            json!({ "id": call.id, "type": "function", "function": function })
        })
        .collect();
    let text = message.text();
    let mut answer = json!({ "role": "assistant", "content": if text.is_empty() { Value::Null } else { text.into() } });
    if !calls.is_empty() {
        answer["tool_calls"] = calls.into();
    }
    answer
}

fn push_user_messages(message: &Message, messages: &mut Vec<Value>) {
    let mut rest = Vec::new();
    for block in &message.content {
        match block {
            Block::ToolResult(result) => {
                let text = result.text();
                let text = if text.is_empty() { "(no text)".to_owned() } else { text };
                messages.push(json!({ "role": "tool", "tool_call_id": result.tool_use_id, "content": text }));
                rest.extend(result.content.iter().filter_map(|part| match part {
                    Part::Image { media_type, data } => {
                        let url = format!("data:{media_type};base64,{data}");
                        Some(json!({ "type": "image_url", "image_url": { "url": url } }))
                    }
                    _ => None,
                }));
            }
            Block::Text(text) => rest.push(json!({ "type": "text", "text": text })),
            Block::ToolUse(_) | Block::Raw(_) => {}
        }
    }
    match rest.as_slice() {
        [] => {}
        [only] if only["type"] == "text" => messages.push(json!({ "role": "user", "content": only["text"] })),
        _ => messages.push(json!({ "role": "user", "content": rest })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Purpose;

    #[test]
    fn results_and_images_become_separate_messages() {
        let messages: Vec<Message> = serde_json::from_value(json!([
            { "role": "user", "content": [{ "type": "text", "text": "go" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm" },
                { "type": "tool_use", "id": "a", "name": "bash", "input": { "command": "ls" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "a", "content": [
                    { "type": "text", "text": "x" },
                    { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AA==" } },
                ] },
                { "type": "text", "text": "note" },
            ] },
        ]))
        .expect("messages");
        let tools = [json!({ "name": "bash", "description": "d", "input_schema": { "type": "object" } })];
        let request =
            Request { tools: &tools, system: "s", messages: &messages, max_tokens: 5, purpose: Purpose::Work };
        let body = body("m", &request);
        assert_eq!(
            body["messages"],
            json!([
                { "role": "system", "content": "s" },
                { "role": "user", "content": "go" },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "a", "type": "function", "function": { "name": "bash", "arguments": "{\"command\":\"ls\"}" } },
                ] },
                { "role": "tool", "tool_call_id": "a", "content": "x" },
                { "role": "user", "content": [
                    { "type": "image_url", "image_url": { "url": "data:image/png;base64,AA==" } },
                    { "type": "text", "text": "note" },
                ] },
            ])
        );
        assert_eq!(body["tools"][0]["function"]["parameters"], json!({ "type": "object" }));
    }
}
