//! Makes the calls of an answer. What only reads runs side by side; what writes waits for all before it, and all after it
//! wait for it: the outcome is that of one call after the other.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use serde_json::Value;
use tools::text::{Provenance, Saved};
use tools::{ErrorCode, ToolResult, Watch};

use super::execute::{execute, output};
use super::observe::{self, Shaped};
use super::stuck::Verdict;
use super::{End, LAST_TURN, MOST_FORMAT_ERRORS, Next, Run, RunError};
use crate::approval::{Answer, Decision, Question};
use crate::change::{Change, Ended, Fact, Strikes};
use crate::event::{Event, Image};
use crate::ledger::facts;
use crate::message::{Block, Message, Part, Role, ToolOutcome, ToolUse};
use crate::stop::StopReason;

/// Reads side by side.
const MOST_AT_ONCE: usize = 8;
/// Answers in a row from a sandbox that is not there.
const MOST_UNAVAILABLE: u32 = 3;

const CANCELLED: &str = "Not executed: cancelled.";
const OUT_OF_TIME: &str = "Not executed: the time for this run is up.";
const AFTER_LAST_TURN: &str = "Not executed: this was the last turn.";

impl Run {
    /// Makes the calls that are open, and puts their results into the conversation. Nothing is open: nothing happens.
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
            let end = match reads(&calls[at].name) {
                true => at + calls[at..].iter().take_while(|call| reads(&call.name)).count(),
                false => at + 1,
            };
            self.group(&calls[at..end]).await?;
            at = end;
        }
        self.fill_missing(if self.time_is_up().is_some() { OUT_OF_TIME } else { CANCELLED });
        Ok(self.observe())
    }

    pub(super) fn calls(&self) -> Vec<ToolUse> {
        self.state.messages.last().map(|answer| answer.calls().cloned().collect()).unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.parts.cancel.is_cancelled() || self.time_is_up().is_some()
    }

    fn is_settled(&self, id: &str) -> bool {
        self.state.open.as_ref().is_some_and(|open| open.ended.contains_key(id))
    }

    pub(super) fn has_begun(&self, id: &str) -> bool {
        self.state.open.as_ref().is_some_and(|open| open.begun.contains(id))
    }

    /// Makes some calls side by side.
    async fn group(&mut self, calls: &[ToolUse]) -> Result<(), RunError> {
        let mut allowed = Vec::new();
        for call in calls.iter().filter(|call| !self.is_settled(&call.id)).cloned().collect::<Vec<_>>() {
            if self.allows(&call).await? {
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
            // A read that was begun before a crash is begun only once in the record.
            if !self.has_begun(&call.id) {
                let event = self.started(call);
                self.note(event, Some(Change::CallBegun { id: call.id.clone() }));
            }
        }
        self.flush().await?;
        let mut left = allowed.len();
        let (tools, teller) = (Arc::clone(&self.parts.tools), self.journal.teller());
        // Ends with the run's, or when its time is up.
        let cancel = self.parts.cancel.child_token();
        let work = allowed.into_iter().map(|call| {
            let watch = Watch { cancel: cancel.clone(), output: Some(output(&teller, &call.id)), ..Watch::default() };
            execute(Arc::clone(&tools), call, watch)
        });
        let mut work = stream::iter(work).buffer_unordered(MOST_AT_ONCE);
        let mut in_time = true;
        loop {
            let ended = tokio::select! {
                ended = work.next() => ended,
                _ = self.out_of_time(), if in_time => {
                    in_time = false;
                    cancel.cancel();
                    continue;
                }
            };
            let Some((call, result, took)) = ended else { break };
            self.ended(&call, &result, took).await;
            left -= 1;
            // The last one is written with what follows from it.
            if left > 0 {
                self.flush().await?;
            }
        }
        Ok(())
    }

    fn started(&self, call: &ToolUse) -> Event {
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

    /// Whether a call may be made. One that may not is settled here.
    async fn allows(&mut self, call: &ToolUse) -> Result<bool, RunError> {
        let denied = match self.judge.decide(&call.name, &call.input) {
            Decision::Allow => return Ok(true),
            Decision::Deny => "Denied: the policy of this run does not allow this call. Find another way.".to_owned(),
            Decision::Ask => {
                let args = self.mask_json(&call.input);
                self.note(Event::ApprovalAsked { id: call.id.clone(), tool: call.name.clone(), args }, None);
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
                    _ = self.out_of_time() => return Ok(false),
                };
                let (allowed, reason) = match answer {
                    Answer::Allow => (true, None),
                    Answer::Deny(reason) => (false, reason),
                };
                let event = Event::ApprovalAnswered { id: call.id.clone(), allowed, reason: reason.clone() };
                self.note(event, None);
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

    /// Takes in what a call has given.
    async fn ended(&mut self, call: &ToolUse, result: &ToolResult, took: Duration) {
        let mut facts = facts(call, result);
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
                    // The API takes no empty text.
                    *text = "(no text)".into();
                }
            }
        }
        if content.is_empty() {
            content.push(Part::Text("(no text)".into()));
        }
        let mut provenance = Provenance::of_result(&call.name, result);
        let is_whole = result.structured["truncated"] != true && provenance.saved == Saved::Nowhere;
        let kept = if call.name == "bash" && is_whole { self.keep_whole(call, &content).await } else { None };
        if let Some(path) = &kept {
            provenance.saved = Saved::Whole { path };
        }
        let budget = self.plan.settings.result_budget;
        let Shaped { content, truncated } = observe::shape(call, content, result.is_error, provenance, budget);
        let truncated = truncated || result.structured["truncated"] == true;
        let code = result.code.map(|code| code.as_str().to_owned());
        for fact in &facts {
            if let Fact::TaskEnded { task, exit_code, output } = fact {
                let (task_id, exit_code, output_path) = (task.clone(), *exit_code, output.clone());
                self.note(Event::BackgroundExited { task_id, exit_code, output_path }, None);
            }
        }
        let outcome = ToolOutcome { tool_use_id: call.id.clone(), content, is_error: result.is_error };
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let ended = Ended { outcome, code, facts, notices };
        let event = finished(call, &ended, duration_ms, truncated, images(result));
        self.note(event, Some(Change::CallEnded { ended }));
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

    /// A text that the dispatcher found short enough and the loop does not is kept in the sandbox, where the model can
    /// read all of it.
    async fn keep_whole(&self, call: &ToolUse, content: &[Part]) -> Option<String> {
        let text = content.iter().find_map(Part::as_text)?;
        if text.chars().count() <= self.plan.settings.result_budget {
            return None;
        }
        let safe: String = call.id.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect();
        let path = format!("/tmp/.sandbar-agent/{safe}.log");
        let kept = self.aside("write_file", serde_json::json!({ "path": path, "content": text })).await;
        (!kept.is_error).then_some(path)
    }

    /// A call of our own, which the model does not hear of.
    pub(super) async fn aside(&self, tool: &str, input: Value) -> ToolResult {
        let call = ToolUse { id: String::new(), name: tool.to_owned(), input, extra: serde_json::Map::new() };
        let watch = Watch { cancel: self.parts.cancel.child_token(), ..Watch::default() };
        execute(Arc::clone(&self.parts.tools), call, watch).await.1
    }

    /// Settles a call that is not made, or whose outcome nobody knows.
    pub(super) fn settle_call(&mut self, call: &ToolUse, code: &str, text: &str) {
        if !self.has_begun(&call.id) {
            let event = self.started(call);
            self.note(event, None);
        }
        let outcome =
            ToolOutcome { tool_use_id: call.id.clone(), content: vec![Part::Text(self.mask(text))], is_error: true };
        let ended = Ended { outcome, code: Some(code.to_owned()), facts: Vec::new(), notices: Vec::new() };
        self.note(finished(call, &ended, 0, false, Vec::new()), Some(Change::CallEnded { ended }));
    }

    /// Gives every call that has no result one.
    pub(super) fn fill_missing(&mut self, text: &str) {
        for call in self.calls() {
            if !self.is_settled(&call.id) {
                self.settle_call(&call, ErrorCode::Cancelled.as_str(), text);
            }
        }
    }

    /// Puts all results into the conversation, and says whether it can go on.
    pub(super) fn observe(&mut self) -> Next {
        let calls = self.calls();
        let mut open = self.state.open.take().unwrap_or_default();
        let mut results = Vec::with_capacity(calls.len());
        let (mut notices, mut end) = (Vec::new(), None);
        for call in calls {
            let mut ended = open.ended.remove(&call.id).unwrap_or_else(|| missing(&call.id));
            if self.plan.settings.stuck_detection {
                match self.stuck.look(&call, &ended) {
                    Verdict::Fine => {}
                    Verdict::Nudge(text) => {
                        ended.outcome.content.push(Part::Text(text.clone()));
                        self.note(Event::Nudge { text }, None);
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
        self.note(Event::Observed {}, Some(Change::Observed { message, strikes }));
        if self.parts.cancel.is_cancelled() {
            return Next::Stop(End::cancelled());
        }
        match end.or_else(|| self.given_up()) {
            Some(end) => Next::Stop(end),
            None => Next::GoOn,
        }
    }

    fn given_up(&self) -> Option<End> {
        let Strikes { format_errors, unfinished, timeouts, unavailable } = self.state.strikes;
        if format_errors >= MOST_FORMAT_ERRORS || unfinished > MOST_FORMAT_ERRORS {
            return Some(End::new(
                StopReason::FormatErrors,
                "The model's calls could not be understood, several times in a row.",
            ));
        }
        if timeouts >= self.plan.settings.consecutive_timeouts {
            let message = format!("{timeouts} calls in a row took longer than they may.");
            return Some(End::new(StopReason::ConsecutiveTimeouts, message));
        }
        if unavailable >= MOST_UNAVAILABLE {
            return Some(End::new(StopReason::SandboxLost, "The sandbox does not answer any more."));
        }
        None
    }
}

/// Whether a tool changes nothing.
pub(super) fn reads(tool: &str) -> bool {
    matches!(tool, "read_file" | "grep" | "glob" | "take_screenshot")
}

fn missing(id: &str) -> Ended {
    let content = vec![Part::Text(CANCELLED.into())];
    let outcome = ToolOutcome { tool_use_id: id.to_owned(), content, is_error: true };
    Ended { outcome, code: Some(ErrorCode::Cancelled.as_str().into()), facts: Vec::new(), notices: Vec::new() }
}

fn finished(call: &ToolUse, ended: &Ended, duration_ms: u64, truncated: bool, images: Vec<Image>) -> Event {
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
    let pictures = result.content.iter().filter_map(|block| match block {
        tools::Block::Image(image) => Some(image),
        tools::Block::Text(_) => None,
    });
    let image = |picture: &tools::Image| {
        let (width, height) = picture.size().unwrap_or_default();
        Image { media_type: picture.media_type.to_owned(), width, height }
    };
    pictures.map(image).collect()
}

/// Exits of background tasks are told once, after all results, and not inside of one.
fn take_notices(text: &mut String, facts: &[Fact], notices: &mut Vec<String>) {
    for fact in facts {
        let Fact::TaskEnded { task, .. } = fact else { continue };
        let begins = format!("[Background task {task} has ended");
        let Some(line) = text.lines().find(|line| line.starts_with(&begins)).map(str::to_owned) else { continue };
        *text = text.replacen(&format!("{line}\n"), "", 1);
        notices.push(line);
    }
}
