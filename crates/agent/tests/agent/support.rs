//! A run on in-memory tools, with a model played by the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use sandbar_agent::approval::{ApprovalPolicy, Approver, DenyAll};
use sandbar_agent::model::scripted::Scripted;
use sandbar_agent::model::{Delta, DeltaSink, ModelError, ModelPrice, ModelStop, Purpose, Request, Turn, Usage};
use sandbar_agent::{
    Block, Checkpointer, Event, Feed, Happened, Message, Model, NoCheckpoints, Parts, Plan, Report, Run, RunId,
    RunRecords, Settings, ToolUse,
};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tools::{InMemoryToolDispatcher, ToolDispatcher};

use crate::memory_records::MemoryRunRecords;
use crate::valid::wrong_with;

/// Everything around a model.
pub(crate) struct Rig {
    pub(crate) memory: Arc<InMemoryToolDispatcher>,
    pub(crate) tools: Arc<dyn ToolDispatcher>,
    pub(crate) records: Arc<dyn RunRecords>,
    pub(crate) checkpointer: Arc<dyn Checkpointer>,
    pub(crate) approver: Arc<dyn Approver>,
    pub(crate) cancel: CancellationToken,
    pub(crate) feed: Feed,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let memory = Arc::new(InMemoryToolDispatcher::new());
        Self {
            tools: Arc::clone(&memory) as Arc<dyn ToolDispatcher>,
            memory,
            records: Arc::new(MemoryRunRecords::default()),
            checkpointer: Arc::new(NoCheckpoints),
            approver: Arc::new(DenyAll),
            cancel: CancellationToken::new(),
            feed: Feed::default(),
        }
    }

    pub(crate) fn parts(&self, model: Arc<dyn Model>) -> Parts {
        Parts {
            model,
            tools: Arc::clone(&self.tools),
            checkpointer: Arc::clone(&self.checkpointer),
            records: Arc::clone(&self.records),
            approver: Arc::clone(&self.approver),
            feed: self.feed.clone(),
            cancel: self.cancel.clone(),
        }
    }

    /// Runs to the end, and checks the invariants of every run.
    pub(crate) async fn run(&self, model: Arc<dyn Model>, plan: Plan) -> (Report, Vec<Happened>) {
        let mut watcher = self.feed.watch();
        let run = Run::begin(self.parts(model), RunId::new(), plan).await.expect("the run begins");
        let report = run.drive().await.expect("the run ends");
        let events = watcher.drain();
        check_ended(&report, &events);
        (report, events)
    }
}

/// Checks that the conversation is valid, events are ordered, and every start has one end.
#[track_caller]
pub(crate) fn check_ended(report: &Report, events: &[Happened]) {
    let mut conversation = report.conversation.clone();
    if conversation.last().is_some_and(|last| last.calls().next().is_some()) {
        panic!("calls without results at the end: {conversation:?}");
    }
    conversation.retain(|message| !message.content.is_empty());
    let wire = serde_json::to_value(&conversation).expect("messages serialise");
    assert_eq!(wrong_with(&wire), None, "{wire:#}");
    assert!(events.is_sorted_by(|a, b| a.seq < b.seq), "events out of order");
    for happened in events {
        if let Event::ToolCallStarted { id, .. } = &happened.event {
            let ends = events
                .iter()
                .filter(|one| matches!(&one.event, Event::ToolCallFinished { id: ended, .. } if ended == id));
            assert_eq!(ends.count(), 1, "ends of {id}");
        }
    }
    let last = events.last().map(|one| &one.event);
    assert!(matches!(last, Some(Event::RunFinished { .. })), "the last event is {last:?}");
}

pub(crate) fn plan(settings: Settings) -> Plan {
    Plan {
        goal: "Do it.".into(),
        phases: Vec::new(),
        model: "test".into(),
        workspace: None,
        system: "You are a test.".into(),
        settings,
        policy: ApprovalPolicy::default(),
        details: Value::Null,
    }
}

pub(crate) fn quick() -> Settings {
    Settings { retry_wait: Duration::from_millis(1), ..Settings::default() }
}

pub(crate) fn script(turns: &Value) -> Arc<Scripted> {
    Arc::new(Scripted::new("scripted:test", &json!({ "turns": turns }).to_string()).expect("a script"))
}

pub(crate) fn call(id: &str, name: &str, input: Value) -> Block {
    Block::ToolUse(ToolUse { id: id.into(), name: name.into(), input, extra: Map::new() })
}

pub(crate) fn bash(id: &str, command: &str) -> Block {
    call(id, "bash", json!({ "command": command }))
}

pub(crate) fn says(content: Vec<Block>) -> Result<Turn, ModelError> {
    let calls = content.iter().any(|block| matches!(block, Block::ToolUse(_)));
    let stop = if calls { ModelStop::ToolUse } else { ModelStop::EndTurn };
    Ok(Turn { content, stop, usage: Usage::default(), faults: Vec::new() })
}

pub(crate) fn done() -> Result<Turn, ModelError> {
    says(vec![Block::Text("Done.".into())])
}

type Play = dyn Fn(usize, &[Message]) -> Result<Turn, ModelError> + Send + Sync;

/// A model played by the test: it receives the number of the request, from 0, and the conversation.
/// Every request is validated.
pub(crate) struct FakeModel {
    play: Box<Play>,
    count: AtomicUsize,
    window: u64,
    price: Option<ModelPrice>,
    pub(crate) requests: Mutex<Vec<(Purpose, String)>>,
    /// Counted tokens per estimated one; `None` if it does not count.
    scale: Option<u64>,
    pub(crate) counted: Mutex<Vec<u64>>,
}

impl FakeModel {
    pub(crate) fn new(play: impl Fn(usize, &[Message]) -> Result<Turn, ModelError> + Send + Sync + 'static) -> Self {
        let price = ModelPrice { input: 1.0, output: 1.0, cache_write: 1.0, cache_read: 1.0, long: None };
        Self {
            play: Box::new(play),
            count: AtomicUsize::new(0),
            window: 200_000,
            price: Some(price),
            requests: Mutex::default(),
            scale: None,
            counted: Mutex::default(),
        }
    }

    pub(crate) fn window(self, window: u64) -> Self {
        Self { window, ..self }
    }

    pub(crate) fn counts(self, scale: u64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    pub(crate) fn without_price(self) -> Self {
        Self { price: None, ..self }
    }
}

#[async_trait]
impl Model for FakeModel {
    fn name(&self) -> &str {
        "puppet"
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn max_answer_tokens(&self) -> u64 {
        1000
    }

    fn price(&self) -> Option<ModelPrice> {
        self.price
    }

    async fn count(&self, request: Request<'_>) -> Result<Option<u64>, ModelError> {
        let Some(scale) = self.scale else { return Ok(None) };
        let count = scale * request.messages.iter().map(Message::tokens).sum::<u64>();
        self.counted.lock().push(count);
        Ok(Some(count))
    }

    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        let wire = serde_json::to_value(request.messages).expect("messages serialise");
        if let Some(problem) = wrong_with(&wire) {
            panic!("an invalid request: {problem}\n{wire:#}");
        }
        let prompt = request.messages.iter().map(Message::tokens).sum::<u64>();
        self.requests.lock().push((request.purpose, wire.to_string()));
        if request.purpose == Purpose::Summary {
            return says(vec![Block::Text("A summary.".into())]);
        }
        let mut turn = (self.play)(self.count.fetch_add(1, Ordering::SeqCst), request.messages)?;
        for block in &turn.content {
            if let Block::Text(text) = block {
                tell(Delta::Text(text));
            }
        }
        if turn.usage == Usage::default() {
            turn.usage =
                Usage { input_tokens: prompt * self.scale.unwrap_or(1), output_tokens: 10, ..Usage::default() };
        }
        Ok(turn)
    }
}

/// The text of each result that the model received, in order.
pub(crate) fn results(conversation: &[Message]) -> Vec<String> {
    conversation.iter().flat_map(Message::results).map(sandbar_agent::ToolOutcome::text).collect()
}
