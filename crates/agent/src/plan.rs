//! Task and limits of a run. Recorded with the run, so that another process can continue it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::approval::ApprovalPolicy;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub goal: String,
    /// Worked on one after the other; if empty, the goal alone.
    #[serde(default)]
    pub phases: Vec<PlanPhase>,
    /// In the syntax of [`ModelChoice`](crate::model::ModelChoice).
    pub model: String,
    /// Name of the workspace, for display and for resuming.
    pub workspace: Option<String>,
    /// Recorded, because a changed system prompt would invalidate the provider's cache.
    pub system: String,
    #[serde(default)]
    pub settings: Settings,
    #[serde(default)]
    pub policy: ApprovalPolicy,
    /// Data that the program needs to resume the run, opaque to this crate.
    #[serde(default)]
    pub details: Value,
}

/// A part of the work that is committed on its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanPhase {
    pub goal: String,
}

/// Limits and behaviour of the loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub max_turns: u64,
    /// Limit for all tokens that the model reads and writes; `None` is unlimited.
    pub max_tokens_total: Option<u64>,
    pub max_cost_usd: Option<f64>,
    /// Limit per process that drives the run.
    pub wall_clock: Option<Duration>,
    /// Limit per response; the model's own limit may be lower.
    pub max_answer_tokens: u64,
    /// Most characters per result, and for all results of a turn.
    pub result_budget: usize,
    pub batch_budget: usize,
    /// Whether to detect repeated calls.
    pub stuck_detection: bool,
    pub consecutive_timeouts: u32,
    /// Overrides the known context window of the model.
    pub context_window: Option<u64>,
    /// Backoff before the first retry; it doubles with each further one.
    pub retry_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_turns: 100,
            max_tokens_total: None,
            max_cost_usd: None,
            wall_clock: None,
            max_answer_tokens: 32_000,
            result_budget: 30_000,
            batch_budget: 60_000,
            stuck_detection: true,
            consecutive_timeouts: 3,
            context_window: None,
            retry_wait: Duration::from_secs(1),
        }
    }
}

/// The system prompt. Nothing in it changes during a run.
pub fn system_prompt(root: &str, preview_port: u16) -> String {
    let tools = tools::NAMES.join(", ");
    format!(
        "You are a software engineer who works in a sandbox, a Linux machine of its own, through tools.\n\
         \n\
         - The project is in {root}. Work there.\n\
         - Your tools: {tools}. Calls that only read may be made together in one answer.\n\
         - A web application must listen on port {preview_port}, which is the preview; take_screenshot shows it. Start servers with bash and \
         run_in_background.\n\
         - Only files survive. The sandbox may be replaced between two calls: running processes and anything outside of /home/user are then \
         gone, and a tool's answer says so. Start again what you need.\n\
         - Check your work: run the tests, look at the page.\n\
         - When a result says \"outcome unknown\", find out what happened before you repeat the call.\n\
         - When everything is done, answer with a short summary and without a tool call. That ends the work."
    )
}
