//! Handles a model's response: tool calls, a request to continue, or the end of a phase or the run.

use std::collections::HashSet;

use workspace::ledger::Usd;

use super::{CONTINUE, End, Next, Run, RunError};
use crate::change::Change;
use crate::event::Event;
use crate::message::{Block, Message, Role};
use crate::model::{Fault, ModelStop, Turn};
use crate::stop::StopReason;

/// Consecutive responses without a call that end the run, although the model was asked to continue.
const MAX_IDLE: u32 = 3;
/// Most characters of a tool's name.
const MAX_TOOL_NAME: usize = 128;

impl Run {
    /// Adds a response to the conversation.
    pub(super) fn record_response(&mut self, turn: Turn) {
        let Turn { mut content, stop, usage, mut faults } = turn;
        self.normalize_calls(&mut content, &mut faults);
        if content.is_empty() {
            // The API rejects an empty message.
            content.push(Block::Text("(no answer)".into()));
        }
        let message = Message { role: Role::Assistant, content };
        let text = message.text();
        let cost = self.parts.model.price().map(|price| price.cost(usage));
        if !text.is_empty() {
            let text = self.mask(&text);
            self.record(Event::Message { text }, None);
        }
        let cost_nanos = cost.map_or(0, Usd::nanos);
        let change = Change::Answered { message, stop, usage, cost_nanos };
        self.state.apply(&change);
        let event = Event::Usage {
            usage,
            cost_usd: cost.map(Usd::dollars),
            total_cost_usd: cost.map(|_| self.state.cost.dollars()),
            context_tokens: self.state.context,
            context_window: self.window(),
        };
        self.journal.record(event, Some(change));
        self.refuse_faulty(&faults);
    }

    /// Decides what follows the latest response.
    pub(super) async fn handle_response(&mut self, stop: ModelStop) -> Result<Next, RunError> {
        if self.state.open.is_some() {
            self.idle = 0;
            let next = match stop {
                ModelStop::Refusal => {
                    self.fill_missing("Not executed: the answer was refused.");
                    self.observe()
                }
                _ => self.act().await?,
            };
            if stop != ModelStop::Refusal {
                return Ok(next);
            }
        }
        match stop {
            ModelStop::Refusal => {
                Ok(Next::Stop(End::new(StopReason::Refusal, "The model's provider refused to go on with this.")))
            }
            ModelStop::MaxTokens | ModelStop::PauseTurn | ModelStop::ContextFull if self.idle < MAX_IDLE - 1 => {
                self.idle += 1;
                self.full |= stop == ModelStop::ContextFull;
                self.add_user_message(CONTINUE.into());
                Ok(Next::GoOn)
            }
            _ => self.complete_phase().await,
        }
    }

    /// Gives calls names and ids that the API accepts: models invent names, and some endpoints
    /// repeat ids.
    fn normalize_calls(&self, content: &mut [Block], faults: &mut [(String, Fault)]) {
        let mut known: HashSet<String> =
            self.state.messages.iter().flat_map(Message::calls).map(|call| call.id.clone()).collect();
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        let safe =
            |text: &str| -> String { text.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect() };
        for block in content {
            let Block::ToolUse(call) = block else { continue };
            call.name = safe(&call.name).chars().take(MAX_TOOL_NAME).collect();
            if call.name.is_empty() {
                call.name.push('_');
            }
            let mut id = safe(&call.id);
            while id.is_empty() || !known.insert(id.clone()) {
                id = format!("call_{:016x}", rand::random::<u64>());
            }
            let original = std::mem::replace(&mut call.id, id.clone());
            faults.iter_mut().filter(|(faulty, _)| *faulty == original).for_each(|(faulty, _)| faulty.clone_from(&id));
        }
    }
}
