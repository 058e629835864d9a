//! What happens in a run, for whoever watches it: one JSON object each.
//!
//! Every `tool_call_started` has exactly one `tool_call_finished` with the same `id`, also when a crash lies between them.
//! Deltas are for eyes only: they may be dropped when nobody keeps up, and they are not recorded.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Usage;
use crate::stop::StopReason;

/// An event with its place in the run. `seq` grows with every event, over restarts too; `turn` is the model's turn it
/// belongs to, from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    pub seq: u64,
    pub ts: Timestamp,
    pub turn: u64,
    /// Deltas that this watcher missed just before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    #[serde(flatten)]
    pub event: Event,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    RunStarted {
        run_id: String,
        goal: String,
        model: String,
        workspace: Option<String>,
        /// It goes on where an earlier process left it.
        resumed: bool,
    },
    TurnStarted {},
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        text: String,
    },
    /// The whole text of the model's answer, where there is one.
    Message {
        text: String,
    },
    ToolCallStarted {
        id: String,
        tool: String,
        args: Value,
    },
    ToolOutputDelta {
        id: String,
        stream: String,
        chunk: String,
    },
    ToolCallFinished {
        id: String,
        tool: String,
        is_error: bool,
        code: Option<String>,
        duration_ms: u64,
        truncated: bool,
        /// One line of the answer, for people.
        summary: String,
        /// The text of the answer, without its middle where it is long.
        #[serde(default)]
        output: String,
        /// The pictures of the answer, in order; [`records::picture`](crate::records::picture) has their bytes.
        #[serde(default)]
        images: Vec<Image>,
    },
    /// All results of a turn are with the model.
    Observed {},
    ApprovalAsked {
        id: String,
        tool: String,
        args: Value,
    },
    ApprovalAnswered {
        id: String,
        allowed: bool,
        reason: Option<String>,
    },
    Nudge {
        text: String,
    },
    Pruned {
        results: u64,
        images: u64,
        before: u64,
        after: u64,
    },
    Compacted {
        /// Tokens of context.
        before: u64,
        after: u64,
    },
    Usage {
        #[serde(flatten)]
        usage: Usage,
        /// Absent when nobody knows the model's price.
        cost_usd: Option<f64>,
        total_cost_usd: Option<f64>,
        context_tokens: u64,
        context_window: u64,
    },
    Retry {
        attempt: u32,
        wait_ms: u64,
        reason: String,
    },
    BackgroundExited {
        task_id: String,
        exit_code: i64,
        output_path: Option<String>,
    },
    PhaseStarted {
        phase: u64,
        of: u64,
        goal: String,
    },
    PhaseFinished {
        phase: u64,
        commit: Option<String>,
        snapshot: Option<String>,
    },
    /// The files are kept where they outlive the sandbox.
    Saved {
        snapshot: Option<String>,
        problem: Option<String>,
    },
    /// The sandbox sleeps.
    Paused {
        problem: Option<String>,
    },
    RunFinished {
        stop_reason: StopReason,
        /// What there is to say about it, in a sentence.
        message: String,
        turns: u64,
        usage: Usage,
        cost_usd: Option<f64>,
        /// The model's last words.
        text: String,
        files_changed: Vec<String>,
        background_tasks: Vec<String>,
    },
}

/// A picture in the answer of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub media_type: String,
    pub width: u32,
    pub height: u32,
}

impl Event {
    /// The tool call that it is about.
    pub fn call(&self) -> Option<&str> {
        match self {
            Self::ToolCallStarted { id, .. }
            | Self::ToolOutputDelta { id, .. }
            | Self::ToolCallFinished { id, .. }
            | Self::ApprovalAsked { id, .. }
            | Self::ApprovalAnswered { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Whether it is only for eyes: not recorded, and dropped when nobody keeps up.
    pub fn is_delta(&self) -> bool {
        matches!(self, Self::TextDelta { .. } | Self::ThinkingDelta { .. } | Self::ToolOutputDelta { .. })
    }
}
