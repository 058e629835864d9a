//! Executes the tool calls of a response. Read-only calls run concurrently; a writing call waits
//! for all calls before it, and later calls wait for it, so the outcome equals sequential
//! execution.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use serde_json::Value;
use tools::{ErrorCode, ToolResult, Watch};
use tools::{Provenance, Saved};

use super::execute::{execute, output};
use super::observe::{self, TruncatedResult};
use super::stuck::Verdict;
use super::{End, LAST_TURN, MAX_FORMAT_ERRORS, Next, Run, RunError};
use crate::approval::{ApprovalAnswer, ApprovalDecision, Question};
use crate::change::{Change, Fact, FinishedCall, Strikes};
use crate::event::{Event, Image};
use crate::message::{Block, Message, Part, Role, ToolOutcome, ToolUse};
use crate::stop::StopReason;
use crate::work_summary::extract_facts;

/// Read-only calls that run at the same time.
const MAX_CONCURRENT_READS: usize = 8;
/// Consecutive results without a sandbox that end the run.
const MAX_UNAVAILABLE: u32 = 3;

const CANCELLED: &str = "Not executed: cancelled.";
const OUT_OF_TIME: &str = "Not executed: the time for this run is up.";
const AFTER_LAST_TURN: &str = "Not executed: this was the last turn.";

impl Run {
    /// Executes the open calls and adds their results to the conversation. Does nothing without
    /// open calls.
    pub(super) async fn act(&mut self) -> Result<Next, RunError> {
        if self.state.open.is_none() {
            return Ok(Next::GoOn);
        }
        if self.state.turns >= self.plan.settings.max_turns {
            self.fill_missing(AFTER_LAST_TURN);
            return Ok(self.observe());
        }
        self.recover().await;
        let calls = self.calls();
        let mut at = 0;
        while at < calls.len() && !self.is_over() {
            let end = match is_read_only(&calls[at].name) {
                true => at + calls[at..].iter().take_while(|call| is_read_only(&call.name)).count(),
                false => at + 1,
            };
            self.run_concurrently(&calls[at..end]).await?;
            at = end;
        }
        self.fill_missing(if self.check_deadline().is_some() { OUT_OF_TIME } else { CANCELLED });
        Ok(self.observe())
    }

    pub(super) fn calls(&self) -> Vec<ToolUse> {
        self.state.messages.last().map(|answer| answer.calls().cloned().collect()).unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.parts.cancel.is_cancelled() || self.check_deadline().is_some()
    }

    fn is_settled(&self, id: &str) -> bool {
        self.state.open.as_ref().is_some_and(|open| open.ended.contains_key(id))
    }

    pub(super) fn has_begun(&self, id: &str) -> bool {
        self.state.open.as_ref().is_some_and(|open| open.begun.contains(id))
    }

    /// Executes calls concurrently.
    async fn run_concurrently(&mut self, calls: &[ToolUse]) -> Result<(), RunError> {
        let mut allowed = Vec::new();
        for call in calls.iter().filter(|call| !self.is_settled(&call.id)).cloned().collect::<Vec<_>>() {
            if self.check_approval(&call).await? {
                allowed.push(call);
            }
            if self.is_over() {
                return Ok(());
            }
        }
        if allowed.is_empty() {
            return Ok(());
        }
        for call in &allowed {
            // A read that started before a crash already has its start in the journal.
            if !self.has_begun(&call.id) {
                let event = self.started_event(call);
                self.record(event, Some(Change::CallBegun { id: call.id.clone() }));
            }
        }
        self.flush().await?;
        let mut left = allowed.len();
        let (tools, delta_sender) = (Arc::clone(&self.parts.tools), self.journal.delta_sender());
        // Cancelled with the run, or at its deadline.
        let cancel = self.parts.cancel.child_token();
        let work = allowed.into_iter().map(|call| {
            let watch =
                Watch { cancel: cancel.clone(), output: Some(output(&delta_sender, &call.id)), ..Watch::default() };
            execute(Arc::clone(&tools), call, watch)
        });
        let mut work = stream::iter(work).buffer_unordered(MAX_CONCURRENT_READS);
        let mut in_time = true;
        loop {
            let ended = tokio::select! {
                ended = work.next() => ended,
                _ = self.wait_for_deadline(), if in_time => {
                    in_time = false;
                    cancel.cancel();
                    continue;
                }
            };
            let Some((call, result, took)) = ended else { break };
            self.record_result(&call, &result, took).await;
            left -= 1;
            // The last result is written together with its consequences.
            if left > 0 {
                self.flush().await?;
            }
        }
        Ok(())
    }

    fn started_event(&self, call: &ToolUse) -> Event {
        let args = self.mask_json(&call.input);
        Event::ToolCallStarted { id: call.id.clone(), tool: call.name.clone(), args }
    }

    fn mask_json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.mask(text)),
            Value::Array(items) => items.iter().map(|item| self.mask_json(item)).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.mask_json(value))).collect(),
            other => other.clone(),
        }
    }

    /// Whether the policy or the approver allows a call. A denied call gets its result here.
    async fn check_approval(&mut self, call: &ToolUse) -> Result<bool, RunError> {
        let denied = match self.policy.decide(&call.name, &call.input) {
            ApprovalDecision::Allow => return Ok(true),
            ApprovalDecision::Deny => {
                "Denied: the policy of this run does not allow this call. Find another way.".to_owned()
            }
            ApprovalDecision::Ask => {
                let args = self.mask_json(&call.input);
                self.record(Event::ApprovalAsked { id: call.id.clone(), tool: call.name.clone(), args }, None);
                self.flush().await?;
                let question = Question {
                    run: self.id.clone(),
                    id: call.id.clone(),
                    tool: call.name.clone(),
                    input: call.input.clone(),
                };
                let answer = tokio::select! {
                    biased;
                    () = self.parts.cancel.cancelled() => return Ok(false),
                    answer = self.parts.approver.ask(question) => answer,
                    _ = self.wait_for_deadline() => return Ok(false),
                };
                let (allowed, reason) = match answer {
                    ApprovalAnswer::Allow => (true, None),
                    ApprovalAnswer::Deny(reason) => (false, reason),
                };
                let event = Event::ApprovalAnswered { id: call.id.clone(), allowed, reason: reason.clone() };
                self.record(event, None);
                if allowed {
                    return Ok(true);
                }
                match reason {
                    Some(reason) => format!("Denied by the user: {reason}"),
                    None => "Denied by the user. Find another way, or ask what they want.".to_owned(),
                }
            }
        };
        self.settle_call(call, "denied", &denied);
        Ok(false)
    }

    /// Records the result of a call.
    async fn record_result(&mut self, call: &ToolUse, result: &ToolResult, took: Duration) {
        let mut facts = extract_facts(call, result);
        for fact in &mut facts {
            self.mask_fact(fact);
        }
        let mut content: Vec<Part> = result.content.iter().map(Part::from).collect();
        let mut notices = Vec::new();
        for part in &mut content {
            if let Part::Text(text) = part {
                *text = self.mask(text);
                take_notices(text, &facts, &mut notices);
                if text.trim().is_empty() {
                    // The API rejects an empty text.
                    *text = "(no text)".into();
                }
            }
        }
        if content.is_empty() {
            content.push(Part::Text("(no text)".into()));
        }
        let mut provenance = Provenance::for_result(&call.name, result);
        let is_whole = !result.structured.is_truncated() && provenance.saved == Saved::Nowhere;
        let kept = if call.name == "bash" && is_whole { self.spill_text(call, &content).await } else { None };
        if let Some(path) = &kept {
            provenance.saved = Saved::Whole { path };
        }
        let budget = self.plan.settings.result_budget;
        let TruncatedResult { content, truncated } =
            observe::truncate_result(call, content, result.is_error, provenance, budget);
        let truncated = truncated || result.structured.is_truncated();
        let code = result.code.map(|code| code.as_str().to_owned());
        for fact in &facts {
            if let Fact::TaskEnded { task, exit_code, output } = fact {
                let (task_id, exit_code, output_path) = (task.clone(), *exit_code, output.clone());
                self.record(Event::BackgroundExited { task_id, exit_code, output_path }, None);
            }
        }
        let outcome = ToolOutcome { tool_use_id: call.id.clone(), content, is_error: result.is_error };
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let ended = FinishedCall { outcome, code, facts, notices };
        let event = finished_event(call, &ended, duration_ms, truncated, images(result));
        self.record(event, Some(Change::CallEnded { ended }));
    }

    fn mask_fact(&self, fact: &mut Fact) {
        match fact {
            Fact::Ran { command: text, .. }
            | Fact::TaskBegun { command: text, .. }
            | Fact::Failed { subject: text, .. }
            | Fact::Worked { subject: text, .. } => *text = self.mask(text),
            Fact::Read { .. } | Fact::Changed { .. } | Fact::TaskEnded { .. } | Fact::Directory { .. } => {}
        }
    }

    /// Saves a text in the sandbox if the loop's budget cuts it though the dispatcher's did not, so
    /// that the model can read all of it.
    async fn spill_text(&self, call: &ToolUse, content: &[Part]) -> Option<String> {
        let text = content.iter().find_map(Part::as_text)?;
        if text.chars().count() <= self.plan.settings.result_budget {
            return None;
        }
        let safe: String = call.id.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        let path = format!("/tmp/.sandbar-agent/{safe}.log");
        let kept = self.call_internally("write_file", serde_json::json!({ "path": path, "content": text })).await;
        (!kept.is_error).then_some(path)
    }

    /// Calls a tool for the loop itself; the model does not see it.
    pub(super) async fn call_internally(&self, tool: &str, input: Value) -> ToolResult {
        let call = ToolUse { id: String::new(), name: tool.to_owned(), input, extra: serde_json::Map::new() };
        let watch = Watch { cancel: self.parts.cancel.child_token(), ..Watch::default() };
        execute(Arc::clone(&self.parts.tools), call, watch).await.1
    }

    /// Records a result for a call that was not executed, or whose outcome is unknown.
    pub(super) fn settle_call(&mut self, call: &ToolUse, code: &str, text: &str) {
        if !self.has_begun(&call.id) {
            let event = self.started_event(call);
            self.record(event, None);
        }
        let outcome =
            ToolOutcome { tool_use_id: call.id.clone(), content: vec![Part::Text(self.mask(text))], is_error: true };
        let ended = FinishedCall { outcome, code: Some(code.to_owned()), facts: Vec::new(), notices: Vec::new() };
        self.record(finished_event(call, &ended, 0, false, Vec::new()), Some(Change::CallEnded { ended }));
    }

    /// Records a result for every call that has none.
    pub(super) fn fill_missing(&mut self, text: &str) {
        for call in self.calls() {
            if !self.is_settled(&call.id) {
                self.settle_call(&call, ErrorCode::Cancelled.as_str(), text);
            }
        }
    }

    /// Adds all results to the conversation and decides whether the run can continue.
    pub(super) fn observe(&mut self) -> Next {
        let calls = self.calls();
        let mut open = self.state.open.take().unwrap_or_default();
        let mut results = Vec::with_capacity(calls.len());
        let (mut notices, mut end) = (Vec::new(), None);
        for call in calls {
            let mut ended = open.ended.remove(&call.id).unwrap_or_else(|| missing_result(&call.id));
            if self.plan.settings.stuck_detection {
                match self.stuck.check(&call, &ended) {
                    Verdict::Fine => {}
                    Verdict::Nudge(text) => {
                        ended.outcome.content.push(Part::Text(text.clone()));
                        self.record(Event::Nudge { text }, None);
                    }
                    Verdict::Stuck(why) => {
                        end = Some(End::new(StopReason::Stuck, format!("The model goes in circles: {why}.")));
                    }
                }
            }
            notices.append(&mut ended.notices);
            results.push((call, ended.outcome));
        }
        observe::fit_batch(&mut results, self.plan.settings.batch_budget);
        let mut content: Vec<Block> = results.into_iter().map(|(_, outcome)| Block::ToolResult(outcome)).collect();
        content.extend(notices.into_iter().map(Block::Text));
        if self.state.turns + 1 == self.plan.settings.max_turns {
            content.push(Block::Text(LAST_TURN.into()));
        }
        let (message, strikes) = (Message { role: Role::User, content }, self.state.strikes);
        self.record(Event::Observed {}, Some(Change::Observed { message, strikes }));
        if self.parts.cancel.is_cancelled() {
            return Next::Stop(End::cancelled());
        }
        match end.or_else(|| self.failure_limit()) {
            Some(end) => Next::Stop(end),
            None => Next::GoOn,
        }
    }

    fn failure_limit(&self) -> Option<End> {
        let Strikes { format_errors, unfinished, timeouts, unavailable } = self.state.strikes;
        if format_errors >= MAX_FORMAT_ERRORS || unfinished > MAX_FORMAT_ERRORS {
            return Some(End::new(
                StopReason::FormatErrors,
                "The model's calls could not be understood, several times in a row.",
            ));
        }
        if timeouts >= self.plan.settings.consecutive_timeouts {
            let message = format!("{timeouts} calls in a row took longer than they may.");
            return Some(End::new(StopReason::ConsecutiveTimeouts, message));
        }
        if unavailable >= MAX_UNAVAILABLE {
            return Some(End::new(StopReason::SandboxLost, "The sandbox does not answer any more."));
        }
        None
    }
}

/// Whether a tool changes nothing.
pub(super) fn is_read_only(tool: &str) -> bool {
    matches!(tool, "read_file" | "grep" | "glob" | "take_screenshot")
}

fn missing_result(id: &str) -> FinishedCall {
    let content = vec![Part::Text(CANCELLED.into())];
    let outcome = ToolOutcome { tool_use_id: id.to_owned(), content, is_error: true };
    FinishedCall { outcome, code: Some(ErrorCode::Cancelled.as_str().into()), facts: Vec::new(), notices: Vec::new() }
}

fn finished_event(
    call: &ToolUse,
    ended: &FinishedCall,
    duration_ms: u64,
    truncated: bool,
    images: Vec<Image>,
) -> Event {
    Event::ToolCallFinished {
        id: call.id.clone(),
        tool: call.name.clone(),
        is_error: ended.outcome.is_error,
        code: ended.code.clone(),
        duration_ms,
        truncated,
        summary: observe::summary(&ended.outcome),
        output: observe::excerpt(&ended.outcome),
        images,
    }
}

fn images(result: &ToolResult) -> Vec<Image> {
    let found = result.content.iter().filter_map(|block| match block {
        tools::Block::Image(image) => Some(image),
        tools::Block::Text(_) => None,
    });
    let image = |source: &tools::Image| {
        let (width, height) = source.size().unwrap_or_default();
        Image { media_type: source.media_type.to_owned(), width, height }
    };
    found.map(image).collect()
}

/// Moves exit notices of background tasks out of the text, so that each is sent once, after all
/// results.
fn take_notices(text: &mut String, facts: &[Fact], notices: &mut Vec<String>) {
    for fact in facts {
        let Fact::TaskEnded { task, .. } = fact else { continue };
        let begins = format!("[Background task {task} has ended");
        let Some(line) = text.lines().find(|line| line.starts_with(&begins)).map(str::to_owned) else { continue };
        *text = text.replacen(&format!("{line}\n"), "", 1);
        notices.push(line);
    }
}
