//! Cancels a run at every point where it waits: it ends within two seconds, the conversation stays
//! valid, no process is left, and another process can resume the run.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use sandbar_agent::approval::{ApprovalAnswer, ApprovalDecision, ApprovalPolicy, Approver, Question, Rule};
use sandbar_agent::model::{DeltaSink, ModelError, ModelPrice, Request, Turn};
use sandbar_agent::{
    Block, CheckpointError, Checkpointer, Event, Model, PhaseCheckpoint, Plan, PlanPhase, Run, RunId, Settings,
    StopReason,
};
use serde_json::json;
use testing::Server;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tools::{SandboxToolDispatcher, Step};

use crate::gated_records::Gated;
use crate::support::{FakeModel, Rig, bash, call, check_ended, done, plan, quick, says};

const CANCEL_DEADLINE: Duration = Duration::from_secs(2);

/// Cancels the work at its n-th poll: between two polls it waits somewhere.
struct CancelAt<F> {
    work: Pin<Box<F>>,
    polls: u64,
    at: u64,
    cancel: CancellationToken,
    cancelled: Option<Instant>,
}

impl<F: Future> Future for CancelAt<F> {
    type Output = (F::Output, Option<Instant>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == self.at {
            self.cancelled = Some(Instant::now());
            self.cancel.cancel();
        }
        self.polls += 1;
        let cancelled = self.cancelled;
        self.work.as_mut().poll(context).map(|done| (done, cancelled))
    }
}

/// A model that responds slowly.
struct Slow(FakeModel);

#[async_trait]
impl Model for Slow {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn window(&self) -> u64 {
        Model::window(&self.0)
    }

    fn max_answer_tokens(&self) -> u64 {
        self.0.max_answer_tokens()
    }

    fn price(&self) -> Option<ModelPrice> {
        self.0.price()
    }

    async fn turn(&self, request: Request<'_>, tell: DeltaSink<'_>) -> Result<Turn, ModelError> {
        sleep(Duration::from_secs(20)).await;
        let turn = self.0.turn(request, tell).await;
        sleep(Duration::from_secs(20)).await;
        turn
    }
}

/// A checkpointer and approver that are slower than the cancellation deadline.
struct SlowPort;

#[async_trait]
impl Checkpointer for SlowPort {
    async fn save(&self) -> Result<Option<String>, CheckpointError> {
        sleep(Duration::from_secs(60)).await;
        Ok(Some("snapshot".into()))
    }

    async fn pause(&self) -> Result<(), CheckpointError> {
        sleep(Duration::from_secs(60)).await;
        Ok(())
    }

    async fn commit_phase(&self, _message: &str) -> Result<PhaseCheckpoint, CheckpointError> {
        sleep(Duration::from_secs(60)).await;
        Ok(PhaseCheckpoint::default())
    }

    fn mask(&self, text: &str) -> String {
        text.to_owned()
    }
}

#[async_trait]
impl Approver for SlowPort {
    async fn ask(&self, _question: Question) -> ApprovalAnswer {
        sleep(Duration::from_secs(60)).await;
        ApprovalAnswer::Allow
    }
}

/// Everything that a run may wait for, once: a busy provider, responses, reads, commands, spilled
/// output, an approval, a phase, and finally a limit.
fn model() -> Arc<dyn Model> {
    let busy = std::sync::atomic::AtomicBool::new(true);
    Arc::new(Slow(FakeModel::new(move |_, messages| {
        if busy.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Err(ModelError::Busy { message: "busy".into(), retry_after: Some(Duration::from_secs(30)) });
        }
        let read = |id: &str| call(id, "read_file", json!({ "path": "/home/user/f" }));
        match messages.iter().filter(|message| message.role == sandbar_agent::Role::Assistant).count() {
            0 => says(vec![read("a"), read("b"), bash("c", "work")]),
            1 => says(vec![bash("d", "much"), bash("e", "ask me")]),
            2 => says(vec![Block::Text("The first phase is done.".into())]),
            3 => says(vec![bash("f", "work")]),
            _ => done(),
        }
    })))
}

fn long_plan(settings: Settings) -> Plan {
    let ask = Rule { tool: "bash".into(), pattern: Some("^ask".into()), decision: ApprovalDecision::Ask };
    let policy = ApprovalPolicy { rules: vec![ask], otherwise: ApprovalDecision::Allow };
    let phases = ["One.", "Two."].map(|goal| PlanPhase { goal: goal.into() }).into();
    Plan { policy, phases, ..plan(settings) }
}

fn rig() -> Rig {
    let rig = Rig::new();
    rig.memory.put("/home/user/f", "x\n");
    let second = Duration::from_secs(1);
    let work = [Step::Out("begun\n".into()), Step::Child("helper".into(), 4 * second), Step::Sleep(5 * second)];
    rig.memory.on("work", work);
    rig.memory.on("much", [Step::Out("a line\n".repeat(200)), Step::Sleep(second)]);
    rig.memory.on("ask me", [Step::Sleep(second)]);
    // Every write yields, so that it is a cancellation point too.
    let records = Gated::new(Arc::clone(&rig.records), |_, _| tokio::task::yield_now().boxed());
    Rig { records, checkpointer: Arc::new(SlowPort), approver: Arc::new(SlowPort), ..rig }
}

#[tokio::test(start_paused = true)]
async fn cancelling_at_any_await_ends_in_time_and_resumes() {
    // Both ways to end: the work is done, and a limit is reached.
    for max_turns in [100, 4] {
        let settings = || Settings { max_turns, result_budget: 500, ..quick() };
        for at in 0.. {
            let (rig, id) = (rig(), RunId::new());
            let mut watcher = rig.feed.watch();
            let (parts, plan, mine) = (rig.parts(model()), long_plan(settings()), id.clone());
            let work =
                async move { Run::begin(parts, mine, plan).await.expect("begun").drive().await.expect("an end") };
            let cancel = rig.cancel.clone();
            let (report, cancelled) = CancelAt { work: Box::pin(work), polls: 0, at, cancel, cancelled: None }.await;
            check_ended(&report, &watcher.drain());
            let Some(cancelled) = cancelled else {
                let reason = if max_turns == 100 { StopReason::Completed } else { StopReason::MaxTurns };
                assert_eq!(report.stop_reason, reason, "{}", report.message);
                assert!(at > 60, "there are more places than {at}");
                break;
            };
            let took = cancelled.elapsed();
            assert!(took <= CANCEL_DEADLINE, "poll {at}: {took:?} to the end {}", report.stop_reason);
            assert_eq!(rig.memory.processes(), 0, "poll {at}");
            if report.stop_reason != StopReason::Cancelled {
                continue;
            }
            let rig = Rig { cancel: CancellationToken::new(), ..rig };
            let mut watcher = rig.feed.watch();
            let again = Run::resume(rig.parts(model()), id).await.expect("resumed").drive().await.expect("an end");
            check_ended(&again, &watcher.drain());
            assert!(again.stop_reason != StopReason::Cancelled, "poll {at}");
        }
    }
}

/// In a real sandbox, after every event of a run.
#[tokio::test]
async fn cancelling_after_any_event_leaves_no_process() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let tools = Arc::new(SandboxToolDispatcher::new(sandbox.clone()));
    let command = "echo begun; sleep 4721 & setsid sleep 4722 & (sleep 1; sleep 0.5); pkill -f 'sleep 472[12]'";
    for after in 1.. {
        let rig = Rig { tools: Arc::clone(&tools) as Arc<_>, ..Rig::new() };
        let model = FakeModel::new(move |turn, _| match turn {
            0 => says(vec![call("a", "glob", json!({ "pattern": "*" })), bash("b", command)]),
            _ => done(),
        });
        let mut watcher = rig.feed.watch();
        let run = Run::begin(rig.parts(Arc::new(model)), RunId::new(), plan(quick())).await.expect("begun");
        let driven = tokio::spawn(run.drive());
        let mut events = Vec::new();
        let mut over = false;
        while events.len() < after && !over {
            let next = watcher.next().await.expect("more to come");
            over = matches!(next.event, Event::RunFinished { .. });
            events.push(next);
        }
        let begun = std::time::Instant::now();
        rig.cancel.cancel();
        let report = driven.await.expect("no panic").expect("an end");
        // Twice the promised time, since other tests run concurrently.
        assert!(begun.elapsed() < 2 * CANCEL_DEADLINE, "{:?} after {:?}", begun.elapsed(), events.last());
        events.extend(watcher.drain());
        check_ended(&report, &events);
        let left = rig.tools.dispatch("bash", json!({ "command": "pgrep -fc '[s]leep 472'" })).await;
        assert!(left.text().starts_with("0\n"), "after {:?}: {}", events.get(after - 1), left.text());
        if over {
            assert!(after > 8, "there are more events than {after}");
            break;
        }
    }
    sandbox.kill().await.expect("it ends");
}
