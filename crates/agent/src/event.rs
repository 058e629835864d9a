//! Events of a run for its watchers: one JSON object each.
//!
//! Every `tool_call_started` has exactly one `tool_call_finished` with the same `id`, even if a
//! crash lies between them. Deltas are for display only: they are not recorded, and a slow watcher
//! misses some.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::Usage;
use crate::stop::StopReason;

/// An event with its position in the run. `seq` grows with every event, across restarts too; `turn`
/// is the model's turn it belongs to, from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Happened {
    pub seq: u64,
    pub ts: Timestamp,
    pub turn: u64,
    /// Number of deltas that this watcher missed just before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: u64,
    #[serde(flatten)]
    pub event: Event,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    RunStarted {
        run_id: String,
        goal: String,
        model: String,
        workspace: Option<String>,
        /// The run continues one of an earlier process.
        resumed: bool,
    },
    TurnStarted {},
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        text: String,
    },
    /// The whole text of the model's response, if it has text.
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
        /// One line of the result, for display.
        summary: String,
        /// The text of the result; the middle of a long one is cut.
        #[serde(default)]
        output: String,
        /// The images of the result, in order; [`records::load_image`](crate::records::load_image)
        /// reads their bytes.
        #[serde(default)]
        images: Vec<Image>,
    },
    /// All results of a turn are in the conversation.
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
        /// Tokens in the context.
        before: u64,
        after: u64,
    },
    Usage {
        #[serde(flatten)]
        usage: Usage,
        /// Absent if the price of the model is unknown.
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
    /// The files are saved outside the sandbox.
    Saved {
        snapshot: Option<String>,
        problem: Option<String>,
    },
    /// The sandbox is paused.
    Paused {
        problem: Option<String>,
    },
    RunFinished {
        stop_reason: StopReason,
        /// A sentence about the reason.
        message: String,
        turns: u64,
        usage: Usage,
        cost_usd: Option<f64>,
        /// The model's final text.
        text: String,
        files_changed: Vec<String>,
        background_tasks: Vec<String>,
    },
}

/// An image in the result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct Image {
    pub media_type: String,
    pub width: u32,
    pub height: u32,
}

impl Event {
    /// The id of the tool call that the event belongs to.
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

    /// Whether the event is for display only: not recorded, and dropped for slow watchers.
    pub fn is_delta(&self) -> bool {
        matches!(self, Self::TextDelta { .. } | Self::ThinkingDelta { .. } | Self::ToolOutputDelta { .. })
    }
}
