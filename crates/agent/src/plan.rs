//! What a run is to do, and within which limits. It is recorded with the run, so that another process can go on with it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::approval::Policy;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub goal: String,
    /// Worked off one after the other; none: the goal alone.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// As [`Choice`](crate::model::Choice) reads it.
    pub model: String,
    /// For people and for whoever continues the run.
    pub workspace: Option<String>,
    /// Kept as it was: a system prompt that changes loses the provider's cache.
    pub system: String,
    #[serde(default)]
    pub settings: Settings,
    #[serde(default)]
    pub policy: Policy,
    /// What the program needs to know to continue the run, in its own words.
    #[serde(default)]
    pub details: Value,
}

/// A part of the work that is kept by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    pub goal: String,
}

/// Limits and habits of the loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub max_turns: u64,
    /// Of everything the model reads and writes; none: no limit.
    pub max_tokens_total: Option<u64>,
    pub max_cost_usd: Option<f64>,
    /// Of one process that drives the run.
    pub wall_clock: Option<Duration>,
    /// Of one answer; the model's own limit may be lower.
    pub max_answer_tokens: u64,
    /// Most characters of one result, and of all results of a turn.
    pub result_budget: usize,
    pub batch_budget: usize,
    /// Whether to look for circles.
    pub stuck_detection: bool,
    pub consecutive_timeouts: u32,
    /// In place of what is known of the model.
    pub context_window: Option<u64>,
    /// The first wait before an attempt is repeated; each further one is twice as long.
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

/// What every model is told first. Nothing in it changes during a run.
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
