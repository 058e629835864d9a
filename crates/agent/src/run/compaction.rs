//! Keeps the conversation within the model's context window. Each change invalidates the provider's
//! cache from that point on, so changes are rare and large: old results are pruned first, then
//! everything but the last turns is replaced by a summary.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::timeout;
use tools::Provenance;

use super::observe::truncate_result;
use super::think::Broken;
use super::{End, Next, Run, RunError};
use crate::change::Change;
use crate::event::Event;
use crate::message::{Block, Message, Part, Role, ToolOutcome, ToolUse};
use crate::model::{Delta, Purpose, Request, Usage};
use crate::stop::StopReason;

/// Percentages of the context window.
const PRUNE_AT: u64 = 60;
const COMPACT_AT: u64 = 85;
const COMPACT_TO: u64 = 40;
/// Least gain of a prune, in tokens or in percent of the conversation.
const MIN_GAIN_TOKENS: u64 = 20_000;
const MIN_GAIN_PERCENT: u64 = 25;
/// Results that stay: the last ones, and errors of the last turns.
const KEEP_RESULTS: usize = 5;
const KEEP_ERRORS_TURNS: usize = 10;
/// Shorter results are not worth a placeholder.
const MIN_PRUNABLE_TOKENS: u64 = 60;
/// Images that stay, and how many are removed at once.
const KEEP_IMAGES: usize = 8;
const IMAGE_CHUNK: usize = 4;
/// Turns that stay unchanged when the rest becomes a summary.
const KEEP_TURNS: usize = 3;
/// Tokens of a summary.
const SUMMARY_TOKENS: u64 = 4000;
/// Timeout for a provider's token count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(15);

const ASK_SUMMARY: &str = "The conversation is about to be shortened. Write a summary for yourself, without calling tools: what was asked for, what \
     you have done and found out, what remains to be done and what you would do next. Be exact about names, paths and decisions.";

impl Run {
    /// Prunes or compacts the conversation if it exceeds its share of the window.
    pub(super) async fn compact_if_needed(&mut self) -> Result<Next, RunError> {
        self.drop_images();
        let window = self.window();
        if !self.full && self.state.context * 100 < window * PRUNE_AT {
            return Ok(Next::GoOn);
        }
        self.prune();
        if self.full {
            return self.compact().await;
        }
        let fits = |context: u64| context * 100 < window * COMPACT_AT;
        // The figure is partly an estimate, so the provider is asked before anything is lost.
        if !fits(self.state.context)
            && let Some(context) = self.count_tokens(&self.state.messages).await
        {
            self.state.context = context;
        }
        if fits(self.state.context) { Ok(Next::GoOn) } else { self.compact().await }
    }

    /// The tokens of a conversation, if the provider counts them. A failure is ignored.
    async fn count_tokens(&self, messages: &[Message]) -> Option<u64> {
        let count = self.parts.model.count(Request { messages, ..self.request(Purpose::Work) });
        match timeout(COUNT_TIMEOUT, self.run_unless_over(count)).await {
            Ok(Ok(count)) => count,
            Ok(Err(Broken::Model(error))) => {
                tracing::debug!(%error, "tokens were not counted");
                None
            }
            Ok(Err(Broken::Stopped(_))) | Err(_) => None,
        }
    }

    /// Removes old images, which cost many tokens.
    fn drop_images(&mut self) {
        let is_image = |part: &Part| matches!(part, Part::Image { .. });
        let images = |result: &ToolOutcome| result.content.iter().filter(|part| is_image(part)).count();
        let total: usize = self.state.messages.iter().flat_map(Message::results).map(images).sum();
        let mut surplus = total.saturating_sub(KEEP_IMAGES) / IMAGE_CHUNK * IMAGE_CHUNK;
        if surplus == 0 {
            return;
        }
        let (mut results, mut dropped) = (Vec::new(), 0);
        for result in self.state.messages.iter().flat_map(Message::results) {
            if surplus == 0 {
                break;
            }
            if images(result) == 0 {
                continue;
            }
            let mut result = result.clone();
            for part in result.content.iter_mut().filter(|part| is_image(part)) {
                if surplus > 0 {
                    *part = Part::Text("[picture removed to save space; take or read it again if needed]".into());
                    surplus -= 1;
                    dropped += 1;
                }
            }
            results.push(result);
        }
        self.replace(results, dropped);
    }

    /// Replaces old results by a line each, if that gains enough.
    fn prune(&mut self) {
        let results = self.prunable();
        let tokens: HashMap<&str, u64> = self
            .state
            .messages
            .iter()
            .flat_map(Message::results)
            .map(|result| (result.tool_use_id.as_str(), result.tokens()))
            .collect();
        let of = |result: &ToolOutcome| tokens.get(result.tool_use_id.as_str()).copied().unwrap_or(0);
        let gain: u64 = results.iter().map(|new| of(new).saturating_sub(new.tokens())).sum();
        let gain = self.state.scale().apply(gain);
        if gain >= MIN_GAIN_TOKENS || gain * 100 >= self.state.context * MIN_GAIN_PERCENT {
            self.replace(results, 0);
        }
    }

    fn replace(&mut self, results: Vec<ToolOutcome>, images: u64) {
        let count = if images == 0 { u64::try_from(results.len()).unwrap_or(u64::MAX) } else { 0 };
        let before = self.state.context;
        let change = Change::Pruned { results };
        self.state.apply(&change);
        let event = Event::Pruned { results: count, images, before, after: self.state.context };
        self.journal.record(event, Some(change));
    }

    /// Results that can be replaced, with their placeholders.
    fn prunable(&self) -> Vec<ToolOutcome> {
        let messages = &self.state.messages;
        let calls: HashMap<&str, &ToolUse> =
            messages.iter().flat_map(Message::calls).map(|call| (call.id.as_str(), call)).collect();
        let total = messages.iter().flat_map(Message::results).count();
        let mut turns_after = messages.iter().filter(|message| message.role == Role::Assistant).count();
        let (mut seen, mut found) = (0, Vec::new());
        for message in messages {
            if message.role == Role::Assistant {
                turns_after -= 1;
            }
            for result in message.results() {
                seen += 1;
                let recent_error = result.is_error && turns_after < KEEP_ERRORS_TURNS;
                if total - seen < KEEP_RESULTS || recent_error || result.tokens() <= MIN_PRUNABLE_TOKENS {
                    continue;
                }
                let line = calls.get(result.tool_use_id.as_str()).map_or_else(
                    || "[result removed to save space]".to_owned(),
                    |call| placeholder(call, &result.text()),
                );
                found.push(ToolOutcome { content: vec![Part::Text(line)], ..result.clone() });
            }
        }
        found
    }

    /// Replaces everything but the last turns by the task, the work summary and a model's summary.
    async fn compact(&mut self) -> Result<Next, RunError> {
        let exhausted = |why: &str| Ok(Next::Stop(End::new(StopReason::ContextExhausted, why)));
        if self.state.compactions > 0 && !self.state.progress {
            return exhausted(
                "The conversation is full again, and nothing was changed or learnt since it was shortened.",
            );
        }
        let answers: Vec<usize> = (0..self.state.messages.len())
            .filter(|index| self.state.messages[*index].role == Role::Assistant)
            .collect();
        if answers.is_empty() {
            return exhausted("The task alone is too long for the model.");
        }
        self.flush().await?;
        let (summary, usage) = match self.summarise().await {
            Ok(summary) => summary,
            Err(end) => return Ok(Next::Stop(end)),
        };
        let before = self.state.context;
        let target = self.window() * COMPACT_TO / 100;
        let scale = self.state.scale();
        let mut shortened = None;
        // Each step keeps less, until it fits.
        for (keep, budget) in
            [(KEEP_TURNS, None), (KEEP_TURNS, Some(8000)), (KEEP_TURNS, Some(2000)), (2, Some(1000)), (1, Some(500))]
        {
            let first = answers[answers.len().saturating_sub(keep)];
            let mut kept = self.state.messages[first..].to_vec();
            if let Some(budget) = budget {
                shrink(&mut kept, budget);
            }
            let budget = usize::try_from(target).unwrap_or(usize::MAX);
            let mut messages = vec![Message::user(self.digest(&summary, budget))];
            messages.append(&mut kept);
            if scale.apply(self.state.overhead + messages.iter().map(Message::tokens).sum::<u64>()) > target {
                continue;
            }
            let context = self.count_tokens(&messages).await;
            if context.is_none_or(|context| context <= target) {
                shortened = Some((messages, context));
                break;
            }
        }
        let Some((messages, context)) = shortened else {
            return exhausted("The conversation cannot be made short enough for the model.");
        };
        let cost_nanos = self.parts.model.price().map_or(0, |price| price.cost(usage).nanos());
        let change = Change::Compacted { messages, usage, cost_nanos, context };
        self.state.apply(&change);
        self.full = false;
        self.journal.record(Event::Compacted { before, after: self.state.context }, Some(change));
        Ok(Next::GoOn)
    }

    /// The model's summary of the conversation. If the model fails, the work summary must do.
    async fn summarise(&self) -> Result<(String, Usage), End> {
        let mut messages = self.state.messages.clone();
        let ask = Block::Text(ASK_SUMMARY.into());
        match messages.last_mut() {
            Some(last) if last.role == Role::User => last.content.push(ask),
            _ => messages.push(Message { role: Role::User, content: vec![ask] }),
        }
        let request = Request { messages: &messages, max_tokens: SUMMARY_TOKENS, ..self.request(Purpose::Summary) };
        let tell = |_: Delta<'_>| {};
        match self.run_unless_over(self.parts.model.turn(request, &tell)).await {
            Ok(turn) => {
                let answer = Message { role: Role::Assistant, content: turn.content };
                Ok((answer.text(), turn.usage))
            }
            Err(Broken::Model(error)) => {
                tracing::warn!(%error, "conversation is compacted without a model summary");
                Ok((String::new(), Usage::default()))
            }
            Err(Broken::Stopped(end)) => Err(end),
        }
    }

    /// The first message of the compacted conversation, at most about `budget` tokens.
    fn digest(&self, summary: &str, budget: usize) -> String {
        let mut text = self.task();
        text.push_str(
            "\n\n[What was said between the task and here was replaced by these notes to save space. Nothing in them needs to be done again.]\n",
        );
        let work_summary = self.state.work_summary.render(budget);
        if !work_summary.is_empty() {
            text.push_str(&format!("\nWhat was done, as recorded:\n{work_summary}"));
        }
        for (title, content) in [("Summary", summary), ("The last plan", &self.state.last_text)] {
            if !content.trim().is_empty() {
                let content: String = content.chars().take(budget).collect();
                text.push_str(&format!("\n{title}:\n{content}\n"));
            }
        }
        text
    }
}

/// One line that describes a removed result, so that the model can obtain it again.
fn placeholder(call: &ToolUse, text: &str) -> String {
    let path = call.input["path"].as_str().unwrap_or_default();
    match call.name.as_str() {
        "read_file" => {
            let number = |line: &str| line.split('\t').next().and_then(|number| number.trim().parse::<u64>().ok());
            let first = text.lines().find_map(number);
            let last = text.lines().rev().find_map(number);
            let lines = first.zip(last).map_or_else(String::new, |(first, last)| format!(" lines {first}–{last}"));
            format!("[read_file {path}{lines}: removed to save space; read again if needed]")
        }
        "bash" => {
            let command: String = call.input["command"].as_str().unwrap_or_default().chars().take(120).collect();
            let exit = text.lines().rev().find(|line| line.starts_with("[exit ")).unwrap_or_default();
            format!("[bash `{command}`: output removed to save space] {exit}").trim_end().to_owned()
        }
        "grep" | "glob" => {
            let pattern = call.input["pattern"].as_str().unwrap_or_default();
            format!("[{} {pattern}: removed to save space; search again if needed]", call.name)
        }
        name => format!("[{name} {path}: removed to save space]"),
    }
}

/// Cuts every result of these messages, and removes their images.
fn shrink(messages: &mut [Message], budget: usize) {
    let calls: HashMap<String, ToolUse> =
        messages.iter().flat_map(Message::calls).map(|call| (call.id.clone(), call.clone())).collect();
    for block in messages.iter_mut().flat_map(|message| &mut message.content) {
        let Block::ToolResult(result) = block else { continue };
        for part in result.content.iter_mut().filter(|part| !matches!(part, Part::Text(_))) {
            *part = Part::Text("[picture removed to save space]".into());
        }
        if let Some(call) = calls.get(&result.tool_use_id) {
            let content = std::mem::take(&mut result.content);
            result.content =
                truncate_result(call, content, result.is_error, Provenance::UNSAVED_DOCUMENT, budget).content;
        }
    }
}
