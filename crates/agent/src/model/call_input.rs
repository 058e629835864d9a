//! Parses the input of a tool call from a model's response.

use serde_json::{Value, json};

use super::Fault;

/// The input of a call, and its fault if it is invalid.
pub(super) fn parse_input(json: &str, cut: bool) -> (Value, Option<Fault>) {
    const BEGINNING: usize = 200;
    let problem = match serde_json::from_str(json) {
        Ok(Value::Object(fields)) => return (Value::Object(fields), None),
        Ok(_) => "it is not an object".to_owned(),
        Err(error) => error.to_string(),
    };
    let fault = match cut {
        true => Fault::Unfinished,
        false => Fault::Invalid { problem, begins: json.chars().take(BEGINNING).collect() },
    };
    (json!({}), Some(fault))
}
