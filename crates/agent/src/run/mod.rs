//! One run: think, act, observe, repeat.
//!
//! Invariants. On every path out of this module, each tool call has exactly one result, in order,
//! in the message after the response. A change is journaled before it takes effect. Only
//! `compaction.rs` changes anything before the newest message.

mod act;
mod compaction;
mod execute;
mod finish;
mod invalid_calls;
mod journal;
mod observe;
mod phases;
mod recovery;
mod response;
mod state;
mod stuck;
mod think;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tools::ToolDispatcher;
use workspace::ledger::Usd;

use crate::approval::{Approver, CompiledPolicy, InvalidRulePattern};
use crate::change::Change;
use crate::checkpoint::Checkpointer;
use crate::event::Event;
use crate::feed::Feed;
use crate::message::{Message, Role};
use crate::model::{Model, ModelStop, Usage};
use crate::plan::Plan;
use crate::records::{Head, RunId, RunRecord, RunRecords, RunRecordsError, RunState};
use crate::stop::StopReason;
use journal::Journal;
use state::State;
use stuck::Stuck;
use think::Thought;

/// Interval of heartbeats, which also check for a request to cancel.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Consecutive responses without a valid call that end the run.
const MAX_FORMAT_ERRORS: u32 = 3;

const CONTINUE: &str = "Continue.";
const LAST_TURN: &str = "This is your last turn; answer now without tools.";

/// Dependencies of a run.
#[derive(Clone)]
pub struct Parts {
    pub model: Arc<dyn Model>,
    pub tools: Arc<dyn ToolDispatcher>,
    pub checkpointer: Arc<dyn Checkpointer>,
    pub records: Arc<dyn RunRecords>,
    pub approver: Arc<dyn Approver>,
    /// Publishes every event.
    pub feed: Feed,
    /// Once cancelled, the run ends within two seconds, with a valid conversation.
    pub cancel: CancellationToken,
}

/// A run that could not start, or can no longer be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("there is no run {0}")]
    NotFound(RunId),
    #[error("run {0} has completed; there is nothing to go on with")]
    Completed(RunId),
    /// The caller must stop: the other process owns the run.
    #[error("another process drives run {0}")]
    Taken(RunId),
    #[error(
        "the price of {0} is unknown, so it cannot be given a budget in dollars; say what it costs with --price IN/OUT or in \
         the configuration ([models.NAME]), or limit turns or tokens instead"
    )]
    NoPrice(String),
    #[error(transparent)]
    Policy(#[from] InvalidRulePattern),
    #[error(transparent)]
    Records(#[from] RunRecordsError),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub run: RunId,
    pub stop_reason: StopReason,
    /// A sentence about the reason.
    pub message: String,
    pub turns: u64,
    pub usage: Usage,
    /// [`None`] if the price of the model is unknown.
    pub cost: Option<Usd>,
    /// The model's final text.
    pub text: String,
    pub files_changed: Vec<String>,
    /// Still running, as far as known.
    pub background_tasks: Vec<String>,
    /// The whole conversation, valid for a model as it is.
    pub conversation: Vec<Message>,
}

/// Why the run ends, and the message about it.
#[derive(Debug)]
struct End {
    reason: StopReason,
    message: String,
}

impl End {
    fn new(reason: StopReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    fn cancelled() -> Self {
        Self::new(StopReason::Cancelled, "The run was stopped. Everything is recorded; `resume` goes on.")
    }
}

/// What follows a step.
enum Next {
    GoOn,
    Stop(End),
}

/// A run that this process drives.
pub struct Run {
    parts: Parts,
    id: RunId,
    plan: Plan,
    tools: Vec<Value>,
    policy: CompiledPolicy,
    state: State,
    journal: Journal,
    stuck: Stuck,
    deadline: Option<Instant>,
    run_state: RunState,
    stop_reason: Option<StopReason>,
    /// Consecutive responses without a call, although the model was asked to continue.
    idle: u32,
    /// The provider reported that the conversation is too long.
    full: bool,
}

impl Run {
    /// Records a new run.
    ///
    /// # Errors
    /// [`RunError::NoPrice`] for a budget in dollars on a model without a price,
    /// [`RunError::Policy`] for an invalid pattern, [`RunError::Records`] if the records fail.
    pub async fn begin(parts: Parts, id: RunId, plan: Plan) -> Result<Self, RunError> {
        let head = Head {
            state: RunState::Running,
            stop_reason: None,
            turns: 0,
            usage: Usage::default(),
            cost_nanos: 0,
            seen_at: Timestamp::now(),
        };
        let mut run = Self::new(parts, id.clone(), plan.clone(), 0, 0)?;
        let record = RunRecord { id, plan, created_at: Timestamp::now(), head, cancel_asked: false, entries: 0 };
        run.parts.records.begin(&record).await?;
        run.record_start(false, Some(Message::user(run.task())));
        if let Some((index, phase)) = run.current_phase() {
            let event = run.phase_started_event(index, &phase);
            run.record(event, None);
        }
        run.flush().await?;
        Ok(run)
    }

    /// Continues a run of another process. Only a completed run cannot continue.
    ///
    /// # Errors
    /// [`RunError::NotFound`] if the run does not exist, [`RunError::Completed`] if it has
    /// completed, [`RunError::Records`] if the records fail.
    pub async fn resume(parts: Parts, id: RunId) -> Result<Self, RunError> {
        let record = parts.records.run(&id).await?.ok_or_else(|| RunError::NotFound(id.clone()))?;
        if record.head.stop_reason == Some(StopReason::Completed) {
            return Err(RunError::Completed(id));
        }
        let entries = parts.records.entries(&id, 0).await?;
        let next = entries.last().map_or(0, |entry| entry.happened.seq + 1);
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        parts.records.clear_cancel_request(&id).await?;
        let mut run = Self::new(parts, id, record.plan, count, next)?;
        for change in entries.iter().filter_map(|entry| entry.change.as_ref()) {
            run.replay(change);
            run.state.apply(change);
        }
        run.journal.set_turn(run.state.turns);
        // Empty only if the process died before the task was recorded.
        let task = run.state.messages.is_empty().then(|| Message::user(run.task()));
        let fresh = task.is_some();
        run.record_start(true, task);
        if !fresh && record.head.state == RunState::Finished && run.state.open.is_none() {
            run.note_to_model("The run was stopped and goes on now.");
        }
        run.flush().await?;
        Ok(run)
    }

    /// Rebuilds the state that is derived from journaled changes but not journaled itself.
    fn replay(&mut self, change: &Change) {
        match change {
            Change::Observed { .. } => {
                self.idle = 0;
                let open = self.state.open.clone().unwrap_or_default();
                for call in self.calls() {
                    if let Some(ended) = open.ended.get(&call.id) {
                        self.stuck.check(&call, ended);
                    }
                }
            }
            Change::UserMessage { message } => self.idle = if message.text() == CONTINUE { self.idle + 1 } else { 0 },
            _ => {}
        }
    }

    fn new(parts: Parts, id: RunId, plan: Plan, count: u64, seq: u64) -> Result<Self, RunError> {
        if plan.settings.max_cost_usd.is_some() && parts.model.price().is_none() {
            return Err(RunError::NoPrice(parts.model.name().to_owned()));
        }
        let tools: Vec<Value> = tools::definitions().iter().map(tools::Definition::anthropic).collect();
        let overhead = plan.system.len() + tools.iter().map(|tool| tool.to_string().len()).sum::<usize>();
        let journal = Journal::new(
            Arc::clone(&parts.records),
            id.clone(),
            parts.feed.clone(),
            Arc::clone(&parts.checkpointer),
            count,
            seq,
        );
        Ok(Self {
            policy: CompiledPolicy::new(&plan.policy)?,
            state: State::new(u64::try_from(overhead / 4).unwrap_or(u64::MAX)),
            deadline: plan.settings.wall_clock.map(|time| Instant::now() + time),
            run_state: RunState::Running,
            stop_reason: None,
            stuck: Stuck::default(),
            idle: 0,
            full: false,
            parts,
            id,
            plan,
            tools,
            journal,
        })
    }

    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Drives the run to its end. Dropping the future acts like a crash: the run is recorded and
    /// can be resumed.
    ///
    /// # Errors
    /// [`RunError::Records`] if the records fail, [`RunError::Taken`] if another process has taken
    /// over the run.
    pub async fn drive(mut self) -> Result<Report, RunError> {
        let _heart = self.heartbeat();
        let End { reason, message } = self.work().await?;
        self.finish(reason, message).await
    }

    /// Records heartbeats, and cancels the run on request.
    fn heartbeat(&self) -> AbortOnDropHandle<()> {
        let (records, id, cancel) = (Arc::clone(&self.parts.records), self.id.clone(), self.parts.cancel.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT_INTERVAL).await;
                match records.heartbeat(&id, Timestamp::now()).await {
                    Ok(true) => cancel.cancel(),
                    Ok(false) => {}
                    Err(error) => tracing::debug!(%error, "a heartbeat was not recorded"),
                }
            }
        }))
    }

    async fn work(&mut self) -> Result<End, RunError> {
        if let Next::Stop(end) = self.act().await? {
            return Ok(end);
        }
        // The crash hit between a response without calls and its handling.
        if self.state.messages.last().is_some_and(|last| last.role == Role::Assistant)
            && let Next::Stop(end) = self.handle_response(self.state.last_stop.unwrap_or(ModelStop::EndTurn)).await?
        {
            return Ok(end);
        }
        loop {
            if let Some(end) = self.check_limits() {
                return Ok(end);
            }
            if let Next::Stop(end) = self.compact_if_needed().await? {
                return Ok(end);
            }
            self.journal.set_turn(self.state.turns + 1);
            self.record(Event::TurnStarted {}, None);
            self.flush().await?;
            let turn = match self.think().await? {
                Thought::Turn(turn) => turn,
                Thought::TooLong => {
                    self.full = true;
                    continue;
                }
                Thought::Stop(end) => return Ok(end),
            };
            let stop = turn.stop;
            self.record_response(turn);
            if let Next::Stop(end) = self.handle_response(stop).await? {
                return Ok(end);
            }
        }
    }

    fn record_start(&mut self, resumed: bool, task: Option<Message>) {
        let event = Event::RunStarted {
            run_id: self.id.to_string(),
            goal: self.mask(&self.plan.goal),
            model: self.parts.model.name().to_owned(),
            workspace: self.plan.workspace.clone(),
            resumed,
        };
        self.record(event, task.map(|message| Change::UserMessage { message }));
    }

    /// Adds a message in the user's name.
    fn add_user_message(&mut self, text: String) {
        let event = Event::Nudge { text: self.mask(&text) };
        self.record(event, Some(Change::UserMessage { message: Message::user(text) }));
    }

    /// Appends to what the model receives next.
    fn note_to_model(&mut self, text: &str) {
        self.record(Event::Nudge { text: text.to_owned() }, Some(Change::Noted { text: text.to_owned() }));
    }

    fn record(&mut self, event: Event, change: Option<Change>) {
        if let Some(change) = &change {
            self.state.apply(change);
        }
        self.journal.record(event, change);
    }

    async fn flush(&mut self) -> Result<(), RunError> {
        let head = Head {
            state: self.run_state,
            stop_reason: self.stop_reason,
            turns: self.state.turns,
            usage: self.state.usage,
            cost_nanos: self.state.cost.nanos(),
            seen_at: Timestamp::now(),
        };
        self.journal.flush(&head).await
    }

    fn window(&self) -> u64 {
        self.plan.settings.context_window.unwrap_or_else(|| self.parts.model.window()).max(1)
    }

    fn mask(&self, text: &str) -> String {
        self.parts.checkpointer.mask(text)
    }
}
