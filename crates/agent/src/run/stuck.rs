//! Detects a model that repeats itself: the same call with the same result, the same error at the
//! same place, or two alternating calls. Different inputs or results never count, and a successful
//! change resets all counts.

use std::collections::{HashMap, VecDeque};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::change::{Fact, FinishedCall};
use crate::message::ToolUse;

const SAME_NUDGE: usize = 3;
const SAME_STUCK: usize = 5;
const ERROR_NUDGE: usize = 4;
const ERROR_STUCK: usize = 8;
const TURNS_NUDGE: usize = 6;
const TURNS_STUCK: usize = 12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// A text for the model, added to the result.
    Nudge(String),
    /// Why the run ends.
    Stuck(String),
}

type Key = [u8; 32];

#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// The last calls, newest last.
    last: VecDeque<Key>,
    errors: HashMap<(String, String), usize>,
}

/// Parts of a result that differ on every call: durations, process ids, task numbers.
static VOLATILE: LazyLock<Regex> = LazyLock::new(|| {
    let passing =
        r"(?i)\b\d+(\.\d+)?\s?(ns|µs|us|ms|s|secs?|seconds?|min|minutes?)\b|\b(pid|group|task)\s+\S+|\bc[0-9a-f]{16}\b";
    Regex::new(passing).expect("the expression is constant and tested")
});

fn key(call: &ToolUse, text: &str) -> Key {
    let mut hash = Sha256::new();
    // The fields of the input are ordered: serde_json sorts them.
    for part in [call.name.as_str(), &canonical(&call.input), &VOLATILE.replace_all(text, "#")] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hash.finalize().into()
}

fn canonical(value: &Value) -> String {
    value.to_string()
}

impl Stuck {
    /// Checks a result, in the order of the calls.
    pub(super) fn check(&mut self, call: &ToolUse, ended: &FinishedCall) -> Verdict {
        if ended.facts.iter().any(|fact| matches!(fact, Fact::Changed { .. })) {
            *self = Self::default();
            return Verdict::Fine;
        }
        self.last.push_back(key(call, &ended.outcome.text()));
        if self.last.len() > TURNS_STUCK {
            self.last.pop_front();
        }
        let same = self.same();
        if same >= SAME_STUCK {
            return Verdict::Stuck(format!(
                "{} was called {same} times with the same input and the same result",
                call.name
            ));
        }
        if same == SAME_NUDGE {
            let text = "You have made this exact call 3 times with the same result. Change approach or finish.";
            return Verdict::Nudge(text.into());
        }
        let alternating = self.alternating();
        if alternating >= TURNS_STUCK {
            return Verdict::Stuck(format!(
                "the last {alternating} calls were the same two in turn, with the same results"
            ));
        }
        if alternating == TURNS_NUDGE {
            let text =
                "You have made the same two calls in turn 3 times with the same results. Change approach or finish.";
            return Verdict::Nudge(text.into());
        }
        self.error(call, ended)
    }

    fn error(&mut self, call: &ToolUse, ended: &FinishedCall) -> Verdict {
        let Some(path) = call.input["path"].as_str() else { return Verdict::Fine };
        let Some(code) = ended.code.clone().filter(|_| ended.outcome.is_error) else {
            self.errors.retain(|(_, failed), _| failed != path);
            return Verdict::Fine;
        };
        let count = self.errors.entry((code.clone(), path.to_owned())).or_default();
        *count += 1;
        match *count {
            ERROR_STUCK.. => Verdict::Stuck(format!("{count} calls failed with {code} at {path}")),
            ERROR_NUDGE => {
                let text = format!(
                    "{ERROR_NUDGE} calls have failed with {code} at {path}. Look at the file and the error, then change approach."
                );
                Verdict::Nudge(text)
            }
            _ => Verdict::Fine,
        }
    }

    /// How many of the last calls are equal.
    fn same(&self) -> usize {
        let newest = self.last.back();
        self.last.iter().rev().take_while(|key| Some(*key) == newest).count()
    }

    /// How many of the last calls are two alternating ones.
    fn alternating(&self) -> usize {
        let mut newest = self.last.iter().rev();
        let (Some(a), Some(b)) = (newest.next(), newest.next()) else { return 0 };
        if a == b {
            return 0;
        }
        self.last.iter().rev().enumerate().take_while(|(at, key)| *key == if at % 2 == 0 { a } else { b }).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Part, ToolOutcome};
    use serde_json::{Map, json};

    fn call(name: &str, input: Value) -> ToolUse {
        ToolUse { id: "a".into(), name: name.into(), input, extra: Map::new() }
    }

    fn ended(text: &str, code: Option<&str>) -> FinishedCall {
        let outcome =
            ToolOutcome { tool_use_id: "a".into(), content: vec![Part::Text(text.into())], is_error: code.is_some() };
        FinishedCall { outcome, code: code.map(str::to_owned), facts: Vec::new(), notices: Vec::new() }
    }

    fn verdicts(steps: impl IntoIterator<Item = (ToolUse, FinishedCall)>) -> Vec<char> {
        let mut stuck = Stuck::default();
        let letter = |verdict| match verdict {
            Verdict::Fine => '.',
            Verdict::Nudge(_) => 'n',
            Verdict::Stuck(_) => 's',
        };
        steps.into_iter().map(|(call, ended)| letter(stuck.check(&call, &ended))).collect()
    }

    #[test]
    fn same_call_with_same_result_is_stuck() {
        let step =
            |ms: u32| (call("bash", json!({ "command": "make" })), ended(&format!("took {ms} ms, pid {ms}"), None));
        assert_eq!(verdicts((1..=5).map(step)), ['.', '.', 'n', '.', 's']);
        let different =
            (1..=9).map(|number| (call("bash", json!({ "command": "make" })), ended(&format!("{number} left"), None)));
        assert!(verdicts(different).iter().all(|verdict| *verdict == '.'));
        let paths =
            (1..=9).map(|number| (call("read_file", json!({ "path": format!("/{number}") })), ended("same", None)));
        assert!(verdicts(paths).iter().all(|verdict| *verdict == '.'));
    }

    #[test]
    fn successful_change_resets_the_counts() {
        let step = || (call("bash", json!({ "command": "make" })), ended("fails", None));
        let mut changed = ended("Edited", None);
        changed.facts.push(Fact::Changed { path: "/x".into(), added: 1, removed: 1 });
        let edit = (call("edit_file", json!({ "path": "/x" })), changed);
        assert_eq!(verdicts([step(), step(), edit, step(), step()]), ['.', '.', '.', '.', '.']);
    }

    #[test]
    fn two_alternating_calls_are_stuck() {
        let step = |number: usize| {
            let command = if number.is_multiple_of(2) { "a" } else { "b" };
            (call("bash", json!({ "command": command })), ended("x", None))
        };
        let all = verdicts((0..12).map(step));
        assert_eq!(all.iter().collect::<String>(), ".....n.....s");
    }

    #[test]
    fn same_error_at_same_place_counts_with_any_input() {
        let step = |number: usize| {
            let input = json!({ "path": "/x", "old_string": number.to_string() });
            (call("edit_file", input), ended(&format!("old_string not found {number}x"), Some("no_match")))
        };
        assert_eq!(verdicts((0..8).map(step)).iter().collect::<String>(), "...n...s");
    }
}
