//! One run: think, act, observe, repeat.
//!
//! Invariants. Every tool call has exactly one result, in order, in the message after its answer, on every path out of this
//! module. What is acted on was written down before. Nothing before the newest message changes, except by `room.rs`.

mod act;
mod check;
mod ending;
mod execute;
mod faulty;
mod journal;
mod observe;
mod phases;
mod room;
mod settle;
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

use crate::approval::{Approver, InvalidPattern, Judge};
use crate::change::Change;
use crate::event::Event;
use crate::feed::Feed;
use crate::message::{Message, Role};
use crate::model::{Model, ModelStop, Usage};
use crate::plan::Plan;
use crate::records::{Head, RunId, RunRecord, RunRecords, RunRecordsError, RunState};
use crate::stop::StopReason;
use crate::workplace::Workplace;
use journal::Journal;
use state::State;
use stuck::Stuck;
use think::Thought;

/// How often the driver shows that it lives, and looks whether it is to stop.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Answers in a row that could not be understood.
const MOST_FORMAT_ERRORS: u32 = 3;

const CONTINUE: &str = "Continue.";
const LAST_TURN: &str = "This is your last turn; answer now without tools.";

/// What a run works with.
#[derive(Clone)]
pub struct Parts {
    pub model: Arc<dyn Model>,
    pub tools: Arc<dyn ToolDispatcher>,
    pub workplace: Arc<dyn Workplace>,
    pub records: Arc<dyn RunRecords>,
    pub approver: Arc<dyn Approver>,
    /// Where everything that happens is told.
    pub feed: Feed,
    /// Cancelled: the run ends within two seconds, with a valid conversation.
    pub cancel: CancellationToken,
}

/// A run that could not begin, or cannot go on being recorded.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("there is no run {0}")]
    NotFound(RunId),
    #[error("run {0} has completed; there is nothing to go on with")]
    Completed(RunId),
    /// Leave it to them.
    #[error("another process drives run {0}")]
    Taken(RunId),
    #[error(
        "the price of {0} is unknown, so it cannot be given a budget in dollars; say what it costs with --price IN/OUT or in \
         the configuration ([models.NAME]), or limit turns or tokens instead"
    )]
    NoPrice(String),
    #[error(transparent)]
    Policy(#[from] InvalidPattern),
    #[error(transparent)]
    Records(#[from] RunRecordsError),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub run: RunId,
    pub stop_reason: StopReason,
    /// What there is to say about it, in a sentence.
    pub message: String,
    pub turns: u64,
    pub usage: Usage,
    /// [`None`] when nobody knows the model's price.
    pub cost: Option<Usd>,
    /// The model's last words.
    pub text: String,
    pub files_changed: Vec<String>,
    /// Still running, as far as is known.
    pub background_tasks: Vec<String>,
    /// The whole conversation, valid as it is.
    pub conversation: Vec<Message>,
}

/// Why to stop, and what to say about it.
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

/// What a step leads to.
enum Next {
    GoOn,
    Stop(End),
}

/// A run that is being driven.
pub struct Run {
    parts: Parts,
    id: RunId,
    plan: Plan,
    tools: Vec<Value>,
    judge: Judge,
    state: State,
    journal: Journal,
    stuck: Stuck,
    deadline: Option<Instant>,
    run_state: RunState,
    stop_reason: Option<StopReason>,
    /// Answers in a row without a call, although the model was asked to go on.
    idle: u32,
    /// The provider said that the conversation is too long.
    full: bool,
}

impl Run {
    /// Records a new run.
    ///
    /// # Errors
    /// Its limits cannot be kept, or nothing can be recorded.
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
        run.announce(false, Some(Message::user(run.task())));
        if let Some((index, phase)) = run.phase() {
            let event = run.phase_started(index, &phase);
            run.note(event, None);
        }
        run.flush().await?;
        Ok(run)
    }

    /// Goes on with a run that another process has left. Only a completed one has nothing to go on with.
    ///
    /// # Errors
    /// There is no such run, it has completed, or the records cannot be read.
    pub async fn resume(parts: Parts, id: RunId) -> Result<Self, RunError> {
        let record = parts.records.run(&id).await?.ok_or_else(|| RunError::NotFound(id.clone()))?;
        if record.head.stop_reason == Some(StopReason::Completed) {
            return Err(RunError::Completed(id));
        }
        let entries = parts.records.entries(&id, 0).await?;
        let next = entries.last().map_or(0, |entry| entry.happened.seq + 1);
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        parts.records.forget_cancel(&id).await?;
        let mut run = Self::new(parts, id, record.plan, count, next)?;
        for change in entries.iter().filter_map(|entry| entry.change.as_ref()) {
            run.retrace(change);
            run.state.apply(change);
        }
        run.journal.at_turn(run.state.turns);
        // Missing only when the process ended before the task was written down.
        let task = run.state.messages.is_empty().then(|| Message::user(run.task()));
        let fresh = task.is_some();
        run.announce(true, task);
        if !fresh && record.head.state == RunState::Finished && run.state.open.is_none() {
            run.note_to_model("The run was stopped and goes on now.");
        }
        run.flush().await?;
        Ok(run)
    }

    /// What the process before remembered without writing it down: it follows from what it wrote.
    fn retrace(&mut self, change: &Change) {
        match change {
            Change::Observed { .. } => {
                self.idle = 0;
                let open = self.state.open.clone().unwrap_or_default();
                for call in self.calls() {
                    if let Some(ended) = open.ended.get(&call.id) {
                        self.stuck.look(&call, ended);
                    }
                }
            }
            Change::Said { message } => self.idle = if message.text() == CONTINUE { self.idle + 1 } else { 0 },
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
            Arc::clone(&parts.workplace),
            count,
            seq,
        );
        Ok(Self {
            judge: Judge::new(&plan.policy)?,
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

    /// Drives the run to its end. Dropping the future leaves it as a crash would: recorded, and ready to be resumed.
    ///
    /// # Errors
    /// It cannot be recorded any more, or another process has taken it.
    pub async fn drive(mut self) -> Result<Report, RunError> {
        let _heart = self.heartbeat();
        let End { reason, message } = self.work().await?;
        self.finish(reason, message).await
    }

    /// Shows that the run is alive, and hears of wishes to stop it.
    fn heartbeat(&self) -> AbortOnDropHandle<()> {
        let (records, id, cancel) = (Arc::clone(&self.parts.records), self.id.clone(), self.parts.cancel.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                match records.touch(&id, Timestamp::now()).await {
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
        // An answer without calls that was not acted on: what follows from it follows now.
        if self.state.messages.last().is_some_and(|last| last.role == Role::Assistant)
            && let Next::Stop(end) = self.settle(self.state.last_stop.unwrap_or(ModelStop::EndTurn)).await?
        {
            return Ok(end);
        }
        loop {
            if let Some(end) = self.limits() {
                return Ok(end);
            }
            if let Next::Stop(end) = self.make_room().await? {
                return Ok(end);
            }
            self.journal.at_turn(self.state.turns + 1);
            self.note(Event::TurnStarted {}, None);
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
            self.answered(turn);
            if let Next::Stop(end) = self.settle(stop).await? {
                return Ok(end);
            }
        }
    }

    fn announce(&mut self, resumed: bool, task: Option<Message>) {
        let event = Event::RunStarted {
            run_id: self.id.to_string(),
            goal: self.mask(&self.plan.goal),
            model: self.parts.model.name().to_owned(),
            workspace: self.plan.workspace.clone(),
            resumed,
        };
        self.note(event, task.map(|message| Change::Said { message }));
    }

    /// Says something in the user's name.
    fn say(&mut self, text: String) {
        let event = Event::Nudge { text: self.mask(&text) };
        self.note(event, Some(Change::Said { message: Message::user(text) }));
    }

    /// Adds to what the model hears next.
    fn note_to_model(&mut self, text: &str) {
        self.note(Event::Nudge { text: text.to_owned() }, Some(Change::Noted { text: text.to_owned() }));
    }

    fn note(&mut self, event: Event, change: Option<Change>) {
        if let Some(change) = &change {
            self.state.apply(change);
        }
        self.journal.note(event, change);
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
        self.parts.workplace.mask(text)
    }
}
