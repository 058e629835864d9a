//! State of a run: the sum of its changes. The process that drives a run and the one that resumes
//! it build it in the same way.

use std::collections::{BTreeMap, BTreeSet};

use workspace::ledger::Usd;

use crate::change::{Change, FinishedCall, Strikes};
use crate::message::{Block, Message, Role, ToolOutcome};
use crate::model::{ModelStop, Usage};
use crate::work_summary::WorkSummary;

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) messages: Vec<Message>,
    /// Responses of the model so far.
    pub(crate) turns: u64,
    pub(crate) usage: Usage,
    pub(crate) cost: Usd,
    /// Tokens of the current conversation: counted by the provider, estimated for what came later.
    pub(crate) context: u64,
    /// Tokens before all messages: tools and system prompt.
    pub(crate) overhead: u64,
    pub(crate) work_summary: WorkSummary,
    pub(crate) phases_done: u64,
    /// The calls of the last response, until their results are in the conversation.
    pub(crate) open: Option<Open>,
    pub(crate) last_text: String,
    pub(crate) last_stop: Option<ModelStop>,
    pub(crate) compactions: u64,
    /// Whether anything changed or was learnt since the last compaction.
    pub(crate) progress: bool,
    pub(crate) strikes: Strikes,
}

/// A response whose calls are being executed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Open {
    pub(crate) begun: BTreeSet<String>,
    pub(crate) ended: BTreeMap<String, FinishedCall>,
}

impl State {
    pub(crate) fn new(overhead: u64) -> Self {
        Self { overhead, context: overhead, ..Self::default() }
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::UserMessage { message } => self.add_user_message(message),
            Change::Observed { message, strikes } => {
                self.strikes = *strikes;
                self.add_user_message(message);
            }
            Change::Answered { message, stop, usage, cost_nanos } => {
                self.turns += 1;
                self.last_stop = Some(*stop);
                self.spend(*usage, *cost_nanos);
                self.messages.push(message.clone());
                // Some endpoints report no usage.
                self.context = if usage.total() == 0 { self.estimate() } else { usage.total() };
                let text = message.text();
                if !text.is_empty() {
                    self.last_text = text;
                }
                self.open = message.calls().next().map(|_| Open::default());
            }
            Change::CallBegun { id } => {
                self.open.get_or_insert_default().begun.insert(id.clone());
            }
            Change::CallEnded { ended } => {
                self.strikes.count(ended.code.as_deref());
                for fact in &ended.facts {
                    self.progress |= self.work_summary.apply(fact);
                }
                self.open.get_or_insert_default().ended.insert(ended.outcome.tool_use_id.clone(), ended.clone());
            }
            Change::Noted { text } => {
                let block = Block::Text(text.clone());
                match self.messages.last_mut() {
                    Some(last) if last.role == Role::User => last.content.push(block),
                    _ => self.messages.push(Message { role: Role::User, content: vec![block] }),
                }
            }
            Change::Pruned { results } => self.replace(results),
            Change::Compacted { messages, usage, cost_nanos, context } => {
                let scale = self.scale();
                self.spend(*usage, *cost_nanos);
                self.messages.clone_from(messages);
                self.context = context.unwrap_or_else(|| scale.apply(self.estimate()));
                self.compactions += 1;
                self.progress = false;
            }
            Change::PhasesDone { count } => self.phases_done = *count,
        }
    }

    fn add_user_message(&mut self, message: &Message) {
        self.open = None;
        self.context += message.tokens();
        self.messages.push(message.clone());
    }

    fn spend(&mut self, usage: Usage, cost_nanos: u64) {
        self.usage.add(usage);
        self.cost += Usd::from_nanos(cost_nanos);
    }

    fn replace(&mut self, results: &[ToolOutcome]) {
        let new: BTreeMap<&str, &ToolOutcome> = results.iter().map(|new| (new.tool_use_id.as_str(), new)).collect();
        let (scale, before) = (self.scale(), self.estimate());
        for block in self.messages.iter_mut().flat_map(|message| &mut message.content) {
            if let Block::ToolResult(result) = block
                && let Some(new) = new.get(result.tool_use_id.as_str())
            {
                *result = (*new).clone();
            }
        }
        let gain = scale.apply(before.saturating_sub(self.estimate()));
        self.context = self.context.saturating_sub(gain);
    }

    /// Approximate tokens of the conversation, by its length alone.
    pub(crate) fn estimate(&self) -> u64 {
        self.overhead + self.messages.iter().map(Message::tokens).sum::<u64>()
    }

    /// Ratio of the provider's token counts to estimates.
    pub(crate) fn scale(&self) -> Scale {
        Scale { known: self.context.max(1), estimated: self.estimate().max(1) }
    }
}

/// A bounded ratio between counted and estimated tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    known: u64,
    estimated: u64,
}

impl Scale {
    pub(crate) fn apply(self, estimated: u64) -> u64 {
        let scaled = u128::from(estimated) * u128::from(self.known) / u128::from(self.estimated);
        u64::try_from(scaled).unwrap_or(u64::MAX).clamp(estimated / 2, estimated.saturating_mul(4))
    }
}
