//! Which calls may be made: a policy by tool and pattern, and somebody to ask.

mod desk;

use async_trait::async_trait;
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use desk::{Desk, Reply};

use crate::records::RunId;

/// What to do about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    #[default]
    Allow,
    Ask,
    Deny,
}

/// The first rule that fits a call decides; none: `otherwise`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    pub rules: Vec<Rule>,
    pub otherwise: Decision,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The tool's name, or `*`.
    pub tool: String,
    /// A regular expression that fits somewhere in the command or path, or else in the input's JSON; absent: always.
    #[serde(default)]
    pub pattern: Option<String>,
    pub decision: Decision,
}

/// A pattern that is no regular expression.
#[derive(Debug, thiserror::Error)]
#[error("the pattern `{pattern}` of an approval rule is no regular expression")]
pub struct InvalidPattern {
    pub pattern: String,
    pub source: regex::Error,
}

/// A policy that is ready to decide.
#[derive(Debug, Clone)]
pub(crate) struct Judge {
    rules: Vec<(String, Option<Regex>, Decision)>,
    otherwise: Decision,
}

impl Judge {
    pub(crate) fn new(policy: &Policy) -> Result<Self, InvalidPattern> {
        let compile = |rule: &Rule| {
            let pattern = rule.pattern.as_ref().map(|pattern| {
                Regex::new(pattern).map_err(|source| InvalidPattern { pattern: pattern.clone(), source })
            });
            Ok((rule.tool.clone(), pattern.transpose()?, rule.decision))
        };
        let rules = policy.rules.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { rules, otherwise: policy.otherwise })
    }

    pub(crate) fn decide(&self, tool: &str, input: &Value) -> Decision {
        let subject = ["command", "path", "pattern"].iter().find_map(|field| input[*field].as_str());
        let subject = subject.map_or_else(|| input.to_string(), str::to_owned);
        let fits = |(name, pattern, _): &&(String, Option<Regex>, Decision)| {
            (name == "*" || name == tool) && pattern.as_ref().is_none_or(|pattern| pattern.is_match(&subject))
        };
        self.rules.iter().find(fits).map_or(self.otherwise, |(_, _, decision)| *decision)
    }
}

/// A call that waits for somebody's word.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub run: RunId,
    /// The call's.
    pub id: String,
    pub tool: String,
    pub input: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Allow,
    /// With what the model is told.
    Deny(Option<String>),
}

/// Somebody who can be asked.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Waits for the answer; the run waits with it. Dropping the future withdraws the question.
    async fn ask(&self, question: Question) -> Answer;
}

/// Nobody is there: what would be asked is denied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nobody;

#[async_trait]
impl Approver for Nobody {
    async fn ask(&self, _question: Question) -> Answer {
        Answer::Deny(Some("Nobody is there to approve it.".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy: Policy = serde_json::from_value(json!({
            "rules": [
                { "tool": "bash", "pattern": "^git push", "decision": "ask" },
                { "tool": "bash", "pattern": "rm -rf /", "decision": "deny" },
                { "tool": "*", "pattern": "\\.env$", "decision": "deny" },
                { "tool": "bash", "decision": "allow" },
            ],
            "otherwise": "ask",
        }))
        .expect("a policy");
        let judge = Judge::new(&policy).expect("good patterns");
        for (tool, input, expected) in [
            ("bash", json!({ "command": "git push origin" }), Decision::Ask),
            ("bash", json!({ "command": "sudo rm -rf /" }), Decision::Deny),
            ("read_file", json!({ "path": "/home/user/.env" }), Decision::Deny),
            ("bash", json!({ "command": "ls" }), Decision::Allow),
            ("grep", json!({ "pattern": "x" }), Decision::Ask),
        ] {
            assert_eq!(judge.decide(tool, &input), expected, "{tool} {input}");
        }
        let wrong = Policy {
            rules: vec![Rule { tool: "*".into(), pattern: Some("(".into()), decision: Decision::Deny }],
            ..policy
        };
        assert!(Judge::new(&wrong).is_err());
    }
}
