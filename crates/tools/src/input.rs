//! Parses what models send. The published schemas are strict, the parser is lenient: a deviation
//! with only one meaning costs no turn.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::result::{ErrorCode, Failure};

/// Names that other products use for our fields.
const ALIASES: [(&str, &str); 8] = [
    ("file_path", "path"),
    ("filePath", "path"),
    ("old_str", "old_string"),
    ("oldString", "old_string"),
    ("new_str", "new_string"),
    ("newString", "new_string"),
    ("cmd", "command"),
    ("replaceAll", "replace_all"),
];

/// The fields of one call. Fields that no tool takes are unknown.
#[derive(Debug)]
pub(crate) struct Input {
    fields: Map<String, Value>,
    known: BTreeSet<&'static str>,
}

impl Input {
    /// Takes an object, or the JSON text of one. `null` equals absence.
    pub(crate) fn new(value: Value) -> Result<Self, Failure> {
        let value = match value {
            Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            other => other,
        };
        let given = match value {
            Value::Object(given) => given,
            Value::Null => Map::new(),
            other => {
                let kind = kind(&other);
                return Err(invalid(format!("The input must be a JSON object, not {kind}. Send the fields by name.")));
            }
        };
        let mut fields = Map::new();
        let mut aliased = Vec::new();
        for (name, value) in given {
            if value.is_null() {
                continue;
            }
            match ALIASES.iter().find(|(alias, _)| *alias == name) {
                Some((_, real)) => aliased.push((*real, value)),
                None => {
                    fields.insert(name, value);
                }
            }
        }
        // The real name wins over its alias.
        for (real, value) in aliased {
            fields.entry(real).or_insert(value);
        }
        Ok(Self { fields, known: BTreeSet::new() })
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, Failure> {
        self.known.insert(name);
        match self.fields.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(truth)) => Ok(Some(truth.to_string())),
            Some(other) => Err(wrong(name, "a string", other)),
        }
    }

    /// Non-empty text; empty text, or a model's word for none, equals absence.
    pub(crate) fn optional_text(&mut self, name: &'static str) -> Result<Option<String>, Failure> {
        let text = self.text(name)?;
        Ok(text.filter(|text| !matches!(text.trim(), "" | "undefined" | "null" | "None")))
    }

    pub(crate) fn required_text(&mut self, name: &'static str) -> Result<String, Failure> {
        match self.text(name)? {
            Some(text) => Ok(text),
            None => {
                let given: Vec<&str> = self.fields.keys().map(String::as_str).collect();
                let given = if given.is_empty() { "no field".to_owned() } else { given.join(", ") };
                Err(invalid(format!("`{name}` is missing (given: {given}). Send it as a string.")))
            }
        }
    }

    /// An integer, also as a string or as a number without a fraction.
    pub(crate) fn integer(&mut self, name: &'static str) -> Result<Option<i64>, Failure> {
        self.known.insert(name);
        let Some(value) = self.fields.get(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => number.as_i64().or_else(|| number.as_f64().and_then(whole)),
            Value::String(text) => {
                let text = text.trim();
                if text.is_empty() {
                    return Ok(None);
                }
                text.parse().ok().or_else(|| text.parse().ok().and_then(whole))
            }
            _ => None,
        };
        number.map(Some).ok_or_else(|| wrong(name, "an integer", value))
    }

    /// An integer between two bounds, both included.
    pub(crate) fn bounded(&mut self, name: &'static str, least: i64, most: i64) -> Result<Option<u64>, Failure> {
        let Some(number) = self.integer(name)? else { return Ok(None) };
        if number < least || number > most {
            return Err(invalid(format!("`{name}` is {number}; it must be between {least} and {most}.")));
        }
        Ok(Some(number.unsigned_abs()))
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<bool, Failure> {
        self.known.insert(name);
        match self.fields.get(name) {
            None => Ok(false),
            Some(Value::Bool(truth)) => Ok(*truth),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
            Some(Value::String(text)) if text.eq_ignore_ascii_case("false") || text.is_empty() => Ok(false),
            Some(Value::Number(number)) if number.as_i64() == Some(1) => Ok(true),
            Some(Value::Number(number)) if number.as_i64() == Some(0) => Ok(false),
            Some(other) => Err(wrong(name, "true or false", other)),
        }
    }

    /// As [`Input::flag`], but absence means true.
    pub(crate) fn flag_unless_off(&mut self, name: &'static str) -> Result<bool, Failure> {
        Ok(if self.fields.contains_key(name) { self.flag(name)? } else { self.flag(name).map(|_| true)? })
    }

    /// A text or a list of texts, also as the JSON text of a list.
    pub(crate) fn texts(&mut self, name: &'static str) -> Result<Vec<String>, Failure> {
        self.known.insert(name);
        let list = match self.fields.get(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) if text.trim_start().starts_with("[\"") => match serde_json::from_str(text) {
                Ok(Value::Array(list)) => list,
                _ => vec![Value::String(text.clone())],
            },
            Some(Value::Array(list)) => list.clone(),
            Some(other) => vec![other.clone()],
        };
        let text = |value: Value| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong(name, "a string", &other)),
        };
        let texts: Vec<String> = list.into_iter().map(text).collect::<Result<_, _>>()?;
        Ok(texts.into_iter().filter(|text| !text.trim().is_empty()).collect())
    }

    /// Names that the tool did not take.
    pub(crate) fn ignored(&self) -> Vec<String> {
        self.fields.keys().filter(|name| !self.known.contains(name.as_str())).cloned().collect()
    }
}

fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64)
}

fn wrong(name: &str, wanted: &str, given: &Value) -> Failure {
    invalid(format!("`{name}` must be {wanted}, not {}.", kind(given)))
}

pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::InvalidInput, message)
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "a truth value".into(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lenient_inputs_are_accepted() {
        let mut input = Input::new(json!({
            "file_path": "/x", "offset": "12", "limit": 3.0, "replaceAll": "true", "mood": "good", "glob": null
        }))
        .expect("an object");
        assert_eq!(input.required_text("path").expect("there"), "/x");
        assert_eq!(input.integer("offset").expect("a number"), Some(12));
        assert_eq!(input.bounded("limit", 1, 10).expect("in range"), Some(3));
        assert!(input.flag("replace_all").expect("a flag"));
        assert_eq!(input.text("glob").expect("absent"), None);
        assert_eq!(input.ignored(), ["mood"]);
    }

    #[test]
    fn object_may_be_json_text() {
        let mut input = Input::new(json!("{\"command\":\"ls\"}")).expect("an object in a string");
        assert_eq!(input.required_text("command").expect("there"), "ls");
    }

    #[test]
    fn missing_and_invalid_fields_are_named() {
        let mut input = Input::new(json!({ "limit": [1] })).expect("an object");
        assert!(input.required_text("path").expect_err("missing").message.contains("`path` is missing"));
        assert!(input.integer("limit").expect_err("a list").message.contains("must be an integer, not a list"));
        let mut input = Input::new(json!({ "limit": 11 })).expect("an object");
        assert!(input.bounded("limit", 1, 10).expect_err("too large").message.contains("between 1 and 10"));
        assert!(Input::new(json!([1])).is_err());
    }
}
