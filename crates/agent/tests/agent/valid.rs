//! The rules of Anthropic's API for messages, as a validator.

use std::collections::HashSet;

use serde_json::Value;

/// What is wrong with the messages of a request; `None` if the real service accepts them.
pub(crate) fn wrong_with(messages: &Value) -> Option<String> {
    let Some(messages) = messages.as_array().filter(|messages| !messages.is_empty()) else {
        return Some("messages: at least one message is required".into());
    };
    let mut ids = HashSet::new();
    let mut asked: Vec<String> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let expected = if index % 2 == 0 { "user" } else { "assistant" };
        if role != expected {
            return Some(format!("messages.{index}: roles must alternate, expected {expected}"));
        }
        let Some(content) = message["content"].as_array().filter(|content| !content.is_empty()) else {
            return Some(format!("messages.{index}: content must not be empty"));
        };
        let answered: Vec<&str> = content.iter().filter_map(|block| block["tool_use_id"].as_str()).collect();
        if role == "user" && answered != asked {
            return Some(format!("messages.{index}: results {answered:?} do not answer the calls {asked:?}"));
        }
        asked.clear();
        let mut text_seen = false;
        for (at, block) in content.iter().enumerate() {
            let place = format!("messages.{index}.content.{at}");
            match block["type"].as_str() {
                Some("text") => {
                    text_seen = true;
                    if block["text"].as_str().is_none_or(|text| text.trim().is_empty()) {
                        return Some(format!("{place}: text must not be empty"));
                    }
                }
                Some("tool_result") if role == "user" => {
                    if text_seen {
                        return Some(format!("{place}: results must come before text"));
                    }
                    if let Some(problem) = wrong_with_result(block) {
                        return Some(format!("{place}: {problem}"));
                    }
                }
                Some("tool_use") if role == "assistant" => {
                    let id = block["id"].as_str().unwrap_or_default();
                    if id.is_empty() || !ids.insert(id.to_owned()) {
                        return Some(format!("{place}: `tool_use` ids must be unique"));
                    }
                    if !block["input"].is_object() {
                        return Some(format!("{place}: input must be an object"));
                    }
                    asked.push(id.to_owned());
                }
                Some("tool_result" | "tool_use") => return Some(format!("{place}: not in this role")),
                Some(_) => {}
                None => return Some(format!("{place}: a block without a type")),
            }
        }
    }
    (!asked.is_empty()).then(|| format!("tool_use ids were found without tool_result blocks: {asked:?}"))
}

fn wrong_with_result(block: &Value) -> Option<String> {
    let parts = block["content"].as_array().filter(|parts| !parts.is_empty());
    let Some(parts) = parts else { return Some("a result without content".into()) };
    parts.iter().find_map(|part| match part["type"].as_str() {
        Some("text") => part["text"].as_str().is_none_or(str::is_empty).then(|| "empty text in a result".to_owned()),
        Some("image") => {
            let known = ["image/png", "image/jpeg", "image/gif", "image/webp"];
            let media = part["source"]["media_type"].as_str().unwrap_or_default();
            (!known.contains(&media)).then(|| format!("unknown media type {media}"))
        }
        _ => Some("an unknown part of a result".into()),
    })
}

#[test]
fn the_validator_refuses_what_the_service_refuses() {
    use serde_json::json;
    let user = |content: Value| json!({ "role": "user", "content": content });
    let answer = |content: Value| json!({ "role": "assistant", "content": content });
    let call = json!({ "type": "tool_use", "id": "a", "name": "bash", "input": {} });
    let result = json!({ "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "x" }] });
    let text = json!({ "type": "text", "text": "hi" });
    let good = json!([user(json!([text])), answer(json!([call])), user(json!([result, text]))]);
    assert_eq!(wrong_with(&good), None);
    for bad in [
        json!([]),
        json!([answer(json!([text]))]),
        json!([user(json!([]))]),
        json!([user(json!([{ "type": "text", "text": " " }]))]),
        json!([user(json!([text])), answer(json!([call])), user(json!([text]))]),
        json!([user(json!([text])), answer(json!([call])), user(json!([text, result]))]),
        json!([user(json!([text])), answer(json!([call])), user(json!([result, result]))]),
        json!([user(json!([text])), answer(json!([call, call])), user(json!([result, result]))]),
        json!([user(json!([text])), answer(json!([text])), user(json!([result]))]),
        json!([user(json!([text])), answer(json!([call]))]),
    ] {
        assert!(wrong_with(&bad).is_some(), "{bad}");
    }
}
