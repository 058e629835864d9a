//! A model that follows a script, for demonstrations and tests: no key, no network, deterministic.
//!
//! The file is JSON or YAML:
//!
//! ```yaml
//! turns:
//!   - text: I make a page.        # the response's text; optional
//!     tool_calls:                 # its calls; optional
//!       - name: write_file
//!         input: { path: index.html, content: "<h1>Hello</h1>" }
//!   - expect: Created             # must be in the previous results, else the run ends
//!     tool_calls:
//!       - { name: bash, input: { command: "ls" } }
//!     if_interrupted:             # runs first if a crash or Ctrl-C left a call open
//!       tool_calls:
//!         - { name: bash, input: { command: "test -f index.html && echo there" } }
//!   - text: Done.
//!     stop_reason: end_turn       # end_turn, tool_use, max_tokens or refusal; optional
//! ```
//!
//! The handling of an interruption may be interrupted too, and is then repeated: let it check
//! before it repeats an effect.
//!
//! `expect` is a text or a list of texts. After its last turn the model says that the script has
//! ended. It finds its position in its own last response of the conversation, so it continues after
//! a crash.

use std::path::Path;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Delta, DeltaSink, Model, ModelError, ModelPrice, ModelStop, Purpose, Request, Turn, Usage};
use crate::message::{Block, Message, Role, ToolUse};

const WINDOW: u64 = 200_000;
const MAX_ANSWER_TOKENS: u64 = 32_000;
/// Type of the block that stores the position in the script; no other model produces it.
const PLACE: &str = "script_turn";

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    /// For the reader of the script.
    #[serde(default, rename = "description")]
    _description: Option<String>,
    turns: Vec<ScriptTurn>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ScriptTurn {
    text: Option<String>,
    tool_calls: Vec<ScriptCall>,
    expect: Expect,
    stop_reason: Option<ScriptStop>,
    if_interrupted: Option<Box<ScriptTurn>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptCall {
    name: String,
    #[serde(default)]
    input: Value,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Expect {
    One(String),
    All(Vec<String>),
}

impl Default for Expect {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScriptStop {
    EndTurn,
    ToolUse,
    MaxTokens,
    Refusal,
}

/// A script that cannot be read or parsed.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("cannot read the script {file}")]
    Unreadable { file: String, source: std::io::Error },
    #[error("the script is neither JSON nor YAML of a script: {0}")]
    Malformed(String),
}

/// A model that follows a script.
#[derive(Debug, Clone)]
pub struct Scripted {
    name: String,
    script: Script,
    window: u64,
}

impl Scripted {
    /// # Errors
    /// [`ScriptError::Unreadable`] if the file cannot be read, [`ScriptError::Malformed`] if it is
    /// not a script.
    pub fn open(file: &Path) -> Result<Self, ScriptError> {
        let shown = file.display().to_string();
        let text =
            std::fs::read_to_string(file).map_err(|source| ScriptError::Unreadable { file: shown.clone(), source })?;
        Self::new(&format!("scripted:{shown}"), &text)
    }

    /// # Errors
    /// [`ScriptError::Malformed`] if the text is not a script.
    pub fn new(name: &str, text: &str) -> Result<Self, ScriptError> {
        // YAML includes JSON, but its parser reports errors in JSON less clearly.
        let script = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| ScriptError::Malformed(error.to_string()))
        } else {
            serde_norway::from_str(text).map_err(|error| ScriptError::Malformed(error.to_string()))
        }?;
        Ok(Self { name: name.to_owned(), script, window: WINDOW })
    }

    /// Sets the context window.
    #[must_use]
    pub fn with_window(self, window: u64) -> Self {
        Self { window, ..self }
    }

    /// The next turn: its number, and whether it is the one for interruptions.
    fn place(&self, messages: &[Message]) -> (usize, bool) {
        let marks = messages.iter().rev().filter(|message| message.role == Role::Assistant);
        let last = marks.flat_map(|message| &message.content).find_map(|block| match block {
            Block::Raw(value) if value["type"] == PLACE => Some(value),
            _ => None,
        });
        let interrupted = messages.last().is_some_and(|message| message.results().any(was_interrupted));
        match last {
            None => (0, false),
            Some(mark) => {
                let turn = mark["turn"].as_u64().and_then(|turn| usize::try_from(turn).ok()).unwrap_or(0);
                // The turn itself follows the handling of its interruption.
                let next = if mark["interrupted"] == true { turn } else { turn + 1 };
                let has_answer = self.script.turns.get(next).is_some_and(|turn| turn.if_interrupted.is_some());
                (next, interrupted && has_answer)
            }
        }
    }
}

/// Whether the outcome of a call is unknown, or it was cancelled.
fn was_interrupted(result: &crate::message::ToolOutcome) -> bool {
    let text = result.text();
    result.is_error
        && (text.starts_with("outcome unknown:") || text.contains("cancelled") || text.contains("Stopped by the user"))
}

impl Expect {
    fn all(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::All(texts) => texts,
        }
    }
}

#[async_trait]
impl Model for Scripted {
    fn name(&self) -> &str {
        &self.name
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn max_answer_tokens(&self) -> u64 {
        MAX_ANSWER_TOKENS
    }

    /// Free of charge.
    fn price(&self) -> Option<ModelPrice> {
        Some(ModelPrice { input: 0.0, output: 0.0, cache_write: 0.0, cache_read: 0.0, long: None })
    }

    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        let prompt = request.messages.iter().map(Message::tokens).sum::<u64>();
        let usage = |content: &[Block]| {
            let answer = Message { role: Role::Assistant, content: content.to_vec() };
            Usage { input_tokens: prompt, output_tokens: answer.tokens(), ..Usage::default() }
        };
        if request.purpose == Purpose::Summary {
            let content = vec![Block::Text("The script goes on where it was.".into())];
            return Ok(Turn { usage: usage(&content), content, stop: ModelStop::EndTurn, faults: Vec::new() });
        }
        let (place, interrupted) = self.place(request.messages);
        let ended = ScriptTurn { text: Some("The script has ended.".into()), ..ScriptTurn::default() };
        let turn = match self.script.turns.get(place) {
            None => &ended,
            Some(ScriptTurn { if_interrupted: Some(turn), .. }) if interrupted => turn,
            Some(turn) => turn,
        };
        let heard = request
            .messages
            .last()
            .map(|message| message.results().map(crate::message::ToolOutcome::text).collect::<Vec<_>>().join("\n"));
        let heard = heard.unwrap_or_default();
        if let Some(missing) = turn.expect.all().iter().find(|text| !heard.contains(text.as_str())) {
            let heard: String = heard.chars().take(1000).collect();
            let problem =
                format!("turn {} of the script expects {missing:?}, but the results were {heard:?}", place + 1);
            return Err(ModelError::Refused(problem));
        }
        let mut content = vec![Block::Raw(json!({ "type": PLACE, "turn": place, "interrupted": interrupted }))];
        if let Some(text) = turn.text.as_ref().filter(|text| !text.trim().is_empty()) {
            tell(Delta::Text(text));
            content.push(Block::Text(text.clone()));
        }
        for (number, call) in turn.tool_calls.iter().enumerate() {
            let again = if interrupted { "i" } else { "" };
            let input = if call.input.is_null() { json!({}) } else { call.input.clone() };
            content.push(Block::ToolUse(ToolUse {
                id: format!("script_{}{again}_{}", place + 1, number + 1),
                name: call.name.clone(),
                input,
                extra: Map::new(),
            }));
        }
        let stop = match turn.stop_reason {
            Some(ScriptStop::EndTurn) => ModelStop::EndTurn,
            Some(ScriptStop::ToolUse) => ModelStop::ToolUse,
            Some(ScriptStop::MaxTokens) => ModelStop::MaxTokens,
            Some(ScriptStop::Refusal) => ModelStop::Refusal,
            None if turn.tool_calls.is_empty() => ModelStop::EndTurn,
            None => ModelStop::ToolUse,
        };
        Ok(Turn { usage: usage(&content), content, stop, faults: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "
turns:
  - text: hello
    tool_calls: [{name: bash, input: {command: ls}}, {name: take_screenshot}]
  - expect: [a, b]
    if_interrupted: {text: again}
    text: |
      two
      lines
";

    #[test]
    fn yaml_and_json_scripts_are_equal() {
        let yaml = Scripted::new("s", SCRIPT).expect("a script");
        assert_eq!(yaml.script.turns[0].tool_calls[1].name, "take_screenshot");
        assert_eq!(yaml.script.turns[1].expect.all(), ["a", "b"]);
        assert_eq!(yaml.script.turns[1].text.as_deref(), Some("two\nlines\n"));
        let json = Scripted::new("s", r#"{"turns": [{"text": "x", "expect": "y"}]}"#).expect("a script");
        assert_eq!(json.script.turns[0].expect.all(), ["y"]);
        let wrong = Scripted::new("s", "turns: [{txt: x}]").expect_err("a typing mistake").to_string();
        assert!(wrong.contains("txt"), "{wrong}");
    }
}
