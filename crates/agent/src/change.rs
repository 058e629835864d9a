//! What a run's state is made of: changes, written down before they are acted on. Applying all of them in order gives the
//! state again, in another process too.

use serde::{Deserialize, Serialize};

use crate::message::{Message, ToolOutcome};
use crate::model::{ModelStop, Usage};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// The user, or the loop in their name, said something.
    Said {
        message: Message,
    },
    /// The model answered. Its calls are now to be made.
    Answered {
        message: Message,
        stop: ModelStop,
        usage: Usage,
        cost_nanos: u64,
    },
    /// A call is about to be made: from here on it may have had its effect.
    CallBegun {
        id: String,
    },
    CallEnded {
        ended: Ended,
    },
    /// All results of the turn, as the model gets them.
    Observed {
        message: Message,
        /// What counts against the model so far.
        #[serde(default)]
        strikes: Strikes,
    },
    /// Something more for the model to know, after the results that it has not seen yet.
    Noted {
        text: String,
    },
    /// Results that were replaced to save space, by the id of their call.
    Pruned {
        results: Vec<ToolOutcome>,
    },
    /// The conversation was replaced by this one. Tokens that were spent on it.
    Compacted {
        messages: Vec<Message>,
        usage: Usage,
        cost_nanos: u64,
        /// Its tokens, where the provider has counted them.
        #[serde(default)]
        context: Option<u64>,
    },
    /// So many phases are done.
    PhasesDone {
        count: u64,
    },
}

/// What has gone wrong in a row, several times of which end a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Strikes {
    /// Answers of which no call could be understood.
    pub format_errors: u32,
    /// Answers that broke off within a call.
    pub unfinished: u32,
    /// Calls that took too long.
    pub timeouts: u32,
    /// Calls that found no sandbox.
    pub unavailable: u32,
}

impl Strikes {
    /// Takes in how a call has ended.
    pub(crate) fn count(&mut self, code: Option<&str>) {
        match code {
            Some("timeout") => self.timeouts += 1,
            Some("sandbox_unavailable") => self.unavailable += 1,
            // They say nothing about the sandbox.
            Some("cancelled" | "denied" | "outcome_unknown") => {}
            _ => (self.timeouts, self.unavailable) = (0, 0),
        }
    }
}

/// A call that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub outcome: ToolOutcome,
    pub code: Option<String>,
    pub facts: Vec<Fact>,
    /// What the model is told after all results.
    #[serde(default)]
    pub notices: Vec<String>,
}

/// Something that a call has shown, for the ledger.
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
