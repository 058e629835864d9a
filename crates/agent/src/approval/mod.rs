//! Approval of tool calls: a policy by tool and pattern, and an approver to ask.

mod queue;

use async_trait::async_trait;
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use queue::{ApprovalQueue, Reply};

use crate::records::RunId;

/// What a policy decides about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RuleDecision")]
pub enum ApprovalDecision {
    #[default]
    Allow,
    Ask,
    Deny,
}

/// The first matching rule decides; without one, `otherwise` does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalPolicy {
    pub rules: Vec<Rule>,
    pub otherwise: ApprovalDecision,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The name of a tool, or `*`.
    pub tool: String,
    /// A regular expression that is searched in the command or path, else in the input's JSON.
    /// Absent, it matches every call.
    #[serde(default)]
    pub pattern: Option<String>,
    pub decision: ApprovalDecision,
}

/// A pattern that is not a regular expression.
#[derive(Debug, thiserror::Error)]
#[error("the pattern `{pattern}` of an approval rule is no regular expression")]
pub struct InvalidRulePattern {
    pub pattern: String,
    pub source: regex::Error,
}

/// A policy with compiled patterns.
#[derive(Debug, Clone)]
pub(crate) struct CompiledPolicy {
    rules: Vec<(String, Option<Regex>, ApprovalDecision)>,
    otherwise: ApprovalDecision,
}

impl CompiledPolicy {
    pub(crate) fn new(policy: &ApprovalPolicy) -> Result<Self, InvalidRulePattern> {
        let compile = |rule: &Rule| {
            let pattern = rule.pattern.as_ref().map(|pattern| {
                Regex::new(pattern).map_err(|source| InvalidRulePattern { pattern: pattern.clone(), source })
            });
            Ok((rule.tool.clone(), pattern.transpose()?, rule.decision))
        };
        let rules = policy.rules.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { rules, otherwise: policy.otherwise })
    }

    pub(crate) fn decide(&self, tool: &str, input: &Value) -> ApprovalDecision {
        let subject = ["command", "path", "pattern"].iter().find_map(|field| input[*field].as_str());
        let subject = subject.map_or_else(|| input.to_string(), str::to_owned);
        let fits = |(name, pattern, _): &&(String, Option<Regex>, ApprovalDecision)| {
            (name == "*" || name == tool) && pattern.as_ref().is_none_or(|pattern| pattern.is_match(&subject))
        };
        self.rules.iter().find(fits).map_or(self.otherwise, |(_, _, decision)| *decision)
    }
}

/// A call that waits for approval.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub run: RunId,
    /// The id of the call.
    pub id: String,
    pub tool: String,
    pub input: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalAnswer {
    Allow,
    /// With a reason for the model.
    Deny(Option<String>),
}

/// Answers questions about calls.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Waits for the answer; the run waits with it. Dropping the future withdraws the question.
    async fn ask(&self, question: Question) -> ApprovalAnswer;
}

/// Denies every call that needs approval.
#[derive(Debug, Clone, Copy, Default)]
pub struct DenyAll;

#[async_trait]
impl Approver for DenyAll {
    async fn ask(&self, _question: Question) -> ApprovalAnswer {
        ApprovalAnswer::Deny(Some("There is no approver for this run.".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn first_matching_rule_decides() {
        let policy: ApprovalPolicy = serde_json::from_value(json!({
            "rules": [
                { "tool": "bash", "pattern": "^git push", "decision": "ask" },
                { "tool": "bash", "pattern": "rm -rf /", "decision": "deny" },
                { "tool": "*", "pattern": "\\.env$", "decision": "deny" },
                { "tool": "bash", "decision": "allow" },
            ],
            "otherwise": "ask",
        }))
        .expect("a policy");
        let compiled = CompiledPolicy::new(&policy).expect("good patterns");
        for (tool, input, expected) in [
            ("bash", json!({ "command": "git push origin" }), ApprovalDecision::Ask),
            ("bash", json!({ "command": "sudo rm -rf /" }), ApprovalDecision::Deny),
            ("read_file", json!({ "path": "/home/user/.env" }), ApprovalDecision::Deny),
            ("bash", json!({ "command": "ls" }), ApprovalDecision::Allow),
            ("grep", json!({ "pattern": "x" }), ApprovalDecision::Ask),
        ] {
            assert_eq!(compiled.decide(tool, &input), expected, "{tool} {input}");
        }
        let wrong = ApprovalPolicy {
            rules: vec![Rule { tool: "*".into(), pattern: Some("(".into()), decision: ApprovalDecision::Deny }],
            ..policy
        };
        assert!(CompiledPolicy::new(&wrong).is_err());
    }
}
