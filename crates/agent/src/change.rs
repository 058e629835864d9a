//! State changes of a run, journaled before they take effect. Replaying them in order rebuilds the
//! state in another process.

use serde::{Deserialize, Serialize};

use crate::message::{Message, ToolOutcome};
use crate::model::{ModelStop, Usage};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// A message of the user, or of the loop in the user's name.
    #[serde(rename = "said")]
    UserMessage {
        message: Message,
    },
    /// The model responded. Its tool calls are open now.
    Answered {
        message: Message,
        stop: ModelStop,
        usage: Usage,
        cost_nanos: u64,
    },
    /// A call is about to start: from here on it may have had its effect.
    CallBegun {
        id: String,
    },
    CallEnded {
        ended: FinishedCall,
    },
    /// All results of the turn, as sent to the model.
    Observed {
        message: Message,
        /// Consecutive failures so far.
        #[serde(default)]
        strikes: Strikes,
    },
    /// A note to the model, appended to results that it has not seen yet.
    Noted {
        text: String,
    },
    /// Results that were replaced to save tokens, by the id of their call.
    Pruned {
        results: Vec<ToolOutcome>,
    },
    /// The conversation was replaced by a shorter one. `usage` is the cost of the summary.
    Compacted {
        messages: Vec<Message>,
        usage: Usage,
        cost_nanos: u64,
        /// Tokens of the new conversation, if the provider counted them.
        #[serde(default)]
        context: Option<u64>,
    },
    /// Number of finished phases.
    PhasesDone {
        count: u64,
    },
}

/// Consecutive failures of each kind; too many end the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Strikes {
    /// Responses with no valid call.
    pub format_errors: u32,
    /// Responses that broke off within a call.
    pub unfinished: u32,
    /// Calls that timed out.
    pub timeouts: u32,
    /// Calls that found no sandbox.
    pub unavailable: u32,
}

impl Strikes {
    /// Counts the result of a call.
    pub(crate) fn count(&mut self, code: Option<&str>) {
        match code {
            Some("timeout") => self.timeouts += 1,
            Some("sandbox_unavailable") => self.unavailable += 1,
            // These codes say nothing about the sandbox.
            Some("cancelled" | "denied" | "outcome_unknown") => {}
            _ => (self.timeouts, self.unavailable) = (0, 0),
        }
    }
}

/// A finished call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedCall {
    pub outcome: ToolOutcome,
    pub code: Option<String>,
    pub facts: Vec<Fact>,
    /// Notices for the model, sent after all results.
    #[serde(default)]
    pub notices: Vec<String>,
}

/// A fact that a call has shown, for the work summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    Read { path: String, sha256: Option<String>, first: u64, last: u64 },
    Changed { path: String, added: u64, removed: u64 },
    Ran { command: String, exit_code: Option<i64> },
    TaskBegun { task: String, command: String, output: String },
    TaskEnded { task: String, exit_code: i64, output: Option<String> },
    Directory { path: String },
    Failed { tool: String, code: String, subject: String },
    Worked { tool: String, subject: String },
}
