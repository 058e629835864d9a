//! The rules of the loop, one test each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use sandbar_agent::approval::{ApprovalAnswer, ApprovalDecision, ApprovalPolicy, ApprovalQueue, Reply, Rule};
use sandbar_agent::{
    Block, CheckpointError, Checkpointer, Event, Happened, Image, Message, PhaseCheckpoint, Plan, PlanPhase, Run,
    RunError, RunId, Settings, StopReason,
};
use serde_json::{Value, json};
use tools::{ErrorCode, Step, StructuredResult, ToolDispatcher, ToolResult, Watch};

use crate::support::{FakeModel, Rig, bash, call, check_ended, done, plan, quick, results, says, script};

fn finished<'a>(events: &'a [Happened], id: &str) -> &'a Event {
    let of = |one: &&Happened| matches!(&one.event, Event::ToolCallFinished { id: ended, .. } if ended == id);
    &events.iter().find(of).unwrap_or_else(|| panic!("{id} has no end")).event
}

#[tokio::test]
async fn script_runs_to_its_end() {
    let rig = Rig::new();
    let model = script(&json!([
        { "text": "I write.", "tool_calls": [{ "name": "write_file", "input": { "path": "a.txt", "content": "hello\n" } }] },
        { "expect": "Created", "tool_calls": [{ "name": "bash", "input": { "command": "cat a.txt" } }] },
        { "expect": ["hello", "[exit 0]"], "text": "It is written." },
    ]));
    let (report, events) = rig.run(model, plan(quick())).await;
    assert_eq!((report.stop_reason, report.turns, report.text.as_str()), (StopReason::Completed, 3, "It is written."));
    assert_eq!(report.files_changed, ["/home/user/a.txt"]);
    let kinds: Vec<String> = events
        .iter()
        .map(|one| serde_json::to_value(&one.event).expect("an event")["type"].as_str().expect("a type").to_owned())
        .collect();
    let expected = "run_started turn_started text_delta message usage tool_call_started tool_call_finished observed turn_started \
                    usage tool_call_started tool_output_delta tool_call_finished observed turn_started text_delta message usage \
                    run_finished";
    assert_eq!(kinds.join(" "), expected);
    let wrong = script(&json!([
        { "tool_calls": [{ "name": "bash", "input": { "command": "echo no" } }] },
        { "expect": "yes", "text": "?" },
    ]));
    let (report, _) = Rig::new().run(wrong, plan(quick())).await;
    assert_eq!(report.stop_reason, StopReason::ProviderError);
    assert!(report.message.contains("turn 2 of the script expects \"yes\""), "{}", report.message);
}

/// Tools that take a moment each and record which calls overlap.
#[derive(Default)]
struct Busy {
    now: Mutex<Vec<String>>,
    log: Mutex<Vec<(String, Vec<String>)>>,
    most: AtomicUsize,
}

#[async_trait]
impl ToolDispatcher for Busy {
    async fn dispatch_watched(&self, name: &str, input: Value, _watch: Watch) -> ToolResult {
        let id = input["path"].as_str().or_else(|| input["command"].as_str()).unwrap_or(name).to_owned();
        {
            let mut now = self.now.lock();
            self.log.lock().push((id.clone(), now.clone()));
            now.push(id.clone());
            self.most.fetch_max(now.len(), Ordering::SeqCst);
        }
        if id == "panic" {
            panic!("on purpose");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.now.lock().retain(|other| *other != id);
        ToolResult {
            is_error: false,
            code: None,
            content: vec![tools::Block::Text(id)],
            structured: StructuredResult::default(),
        }
    }

    async fn close(&self) {}
}

#[tokio::test(start_paused = true)]
async fn reads_run_concurrently_and_writes_alone() {
    let busy = Arc::new(Busy::default());
    let rig = Rig { tools: Arc::clone(&busy) as Arc<dyn ToolDispatcher>, ..Rig::new() };
    let read = |id: &str| call(id, "read_file", json!({ "path": id }));
    let mut all: Vec<Block> = (0..14).map(|number| read(&format!("r{number}"))).collect();
    all.insert(3, bash("w1", "w1"));
    all.insert(6, call("w2", "write_file", json!({ "path": "w2", "content": "" })));
    all.push(bash("w3", "w3"));
    let ids: Vec<String> = Message { role: sandbar_agent::Role::Assistant, content: all.clone() }
        .calls()
        .map(|call| call.id.clone())
        .collect();
    let model = FakeModel::new(move |turn, _| if turn == 0 { says(all.clone()) } else { done() });
    let (report, _) = rig.run(Arc::new(model), plan(quick())).await;
    assert_eq!(results(&report.conversation), ids);
    assert_eq!(busy.most.load(Ordering::SeqCst), 8);
    let log = busy.log.lock();
    let order = |id: &str| log.iter().position(|(one, _)| one == id).expect("it ran");
    for write in ["w1", "w2", "w3"] {
        let (_, beside) = &log[order(write)];
        assert!(beside.is_empty(), "{write} ran beside {beside:?}");
    }
    assert!(log.iter().all(|(_, beside)| beside.iter().all(|id| id.starts_with('r'))));
    for (before, after) in [("r2", "w1"), ("w1", "r3"), ("r4", "w2"), ("w2", "r5"), ("r13", "w3")] {
        assert!(order(before) < order(after), "{before} before {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_tool_yields_an_error_result() {
    let rig = Rig { tools: Arc::new(Busy::default()), ..Rig::new() };
    let model = FakeModel::new(|turn, _| match turn {
        0 => says(vec![bash("a", "first"), bash("b", "panic"), bash("c", "last")]),
        _ => done(),
    });
    let (report, events) = rig.run(Arc::new(model), plan(quick())).await;
    let results = results(&report.conversation);
    assert!(results[0] == "first" && results[1].contains("mistake") && results[2] == "last", "{results:?}");
    assert!(matches!(finished(&events, "b"), Event::ToolCallFinished { code: Some(code), .. } if code == "internal"));
}

#[tokio::test]
async fn three_malformed_responses_end_a_run() {
    let turns = |good: Option<usize>| {
        FakeModel::new(move |turn, _| match turn {
            turn if Some(turn) == good => says(vec![bash(&format!("t{turn}"), &format!("echo {turn}"))]),
            turn if turn < 5 => says(vec![call(&format!("t{turn}"), "fly", json!({}))]),
            _ => done(),
        })
    };
    let (report, _) = Rig::new().run(Arc::new(turns(None)), plan(quick())).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::FormatErrors, 3));
    let (report, _) = Rig::new().run(Arc::new(turns(Some(2))), plan(quick())).await;
    assert_eq!(report.stop_reason, StopReason::Completed);
}

#[tokio::test]
async fn limits_end_a_run_with_their_reason() {
    let endless = || FakeModel::new(|turn, _| says(vec![bash(&format!("t{turn}"), &format!("echo {turn}"))]));
    let (report, events) = Rig::new().run(Arc::new(endless()), plan(Settings { max_turns: 3, ..quick() })).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::MaxTurns, 3));
    let last_heard = report.conversation[4].text();
    assert_eq!(last_heard, "This is your last turn; answer now without tools.");
    assert_eq!(results(&report.conversation)[2], "Not executed: this was the last turn.");
    assert!(
        events.iter().any(|one| matches!(one.event, Event::Saved { .. }))
            && events.iter().any(|one| matches!(one.event, Event::Paused { .. }))
    );
    assert!(report.message.contains("3 turns") && report.message.contains("paused"), "{}", report.message);

    let (report, _) =
        Rig::new().run(Arc::new(endless()), plan(Settings { max_tokens_total: Some(100), ..quick() })).await;
    assert_eq!(report.stop_reason, StopReason::MaxTokensTotal);
    let (report, _) =
        Rig::new().run(Arc::new(endless()), plan(Settings { max_cost_usd: Some(0.0001), ..quick() })).await;
    assert_eq!(report.stop_reason, StopReason::MaxCost);
    let refused = Run::begin(
        Rig::new().parts(Arc::new(endless().without_price())),
        RunId::new(),
        plan(Settings { max_cost_usd: Some(1.0), ..quick() }),
    );
    assert!(matches!(refused.await.err(), Some(RunError::NoPrice(_))));
}

#[tokio::test(start_paused = true)]
async fn wall_clock_limit_ends_a_waiting_run() {
    let busy = || {
        FakeModel::new(|_, _| {
            Err(sandbar_agent::model::ModelError::Busy {
                message: "busy".into(),
                retry_after: Some(Duration::from_secs(500)),
            })
        })
    };
    let settings = Settings { wall_clock: Some(Duration::from_secs(90)), ..quick() };
    let begun = tokio::time::Instant::now();
    let (report, _) = Rig::new().run(Arc::new(busy()), plan(settings)).await;
    assert_eq!(report.stop_reason, StopReason::WallClock);
    assert_eq!(begun.elapsed().as_secs(), 90);
}

#[tokio::test]
async fn repetition_is_nudged_then_ended() {
    let model = || FakeModel::new(|turn, _| says(vec![bash(&format!("t{turn}"), "cat nothing")]));
    let (report, events) = Rig::new().run(Arc::new(model()), plan(quick())).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::Stuck, 5));
    let all = results(&report.conversation);
    assert!(all[2].ends_with("You have made this exact call 3 times with the same result. Change approach or finish."));
    assert_eq!(
        events.iter().filter(|one| matches!(&one.event, Event::Nudge { text } if text.starts_with("You have"))).count(),
        1
    );
    let off = Settings { stuck_detection: false, max_turns: 8, ..quick() };
    assert_eq!(Rig::new().run(Arc::new(model()), plan(off)).await.0.stop_reason, StopReason::MaxTurns);
}

#[tokio::test(start_paused = true)]
async fn consecutive_timeouts_end_a_run() {
    let rig = Rig::new();
    rig.memory.on("hang", [Step::Never]);
    let model = FakeModel::new(|turn, _| {
        says(vec![call(&format!("t{turn}"), "bash", json!({ "command": format!("hang {turn}"), "timeout": 1 }))])
    });
    let (report, _) = rig.run(Arc::new(model), plan(quick())).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::ConsecutiveTimeouts, 3));
    assert_eq!(rig.memory.processes(), 0);
}

/// A sandbox that is gone.
struct Gone;

#[async_trait]
impl ToolDispatcher for Gone {
    async fn dispatch_watched(&self, _name: &str, _input: Value, _watch: Watch) -> ToolResult {
        let code = ErrorCode::SandboxUnavailable;
        ToolResult {
            is_error: true,
            code: Some(code),
            content: vec![tools::Block::Text("gone".into())],
            structured: StructuredResult::default(),
        }
    }

    async fn close(&self) {}
}

#[tokio::test]
async fn unavailable_sandbox_ends_a_run() {
    let rig = Rig { tools: Arc::new(Gone), ..Rig::new() };
    let model = FakeModel::new(|turn, _| says(vec![bash(&format!("t{turn}"), &format!("echo {turn}"))]));
    let (report, _) = rig.run(Arc::new(model), plan(quick())).await;
    assert_eq!(report.stop_reason, StopReason::SandboxLost);
}

#[tokio::test]
async fn idle_responses_are_limited() {
    let model = FakeModel::new(|_, _| {
        let mut turn = says(vec![Block::Text("And then".into())])?;
        turn.stop = sandbar_agent::model::ModelStop::MaxTokens;
        Ok(turn)
    });
    let (report, _) = Rig::new().run(Arc::new(model), plan(quick())).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::Completed, 3));
    assert_eq!(report.conversation[2].text(), "Continue.");
    let empty = FakeModel::new(|_, _| says(Vec::new()));
    let (report, _) = Rig::new().run(Arc::new(empty), plan(quick())).await;
    assert_eq!(report.stop_reason, StopReason::Completed);
}

#[tokio::test]
async fn cancelled_command_ends_within_two_seconds() {
    let rig = Rig::new();
    rig.memory.on("hang", [Step::Never]);
    let model = FakeModel::new(|turn, _| match turn {
        0 => says(vec![bash("a", "echo one"), bash("b", "hang"), bash("c", "echo three")]),
        _ => done(),
    });
    let mut watcher = rig.feed.watch();
    let run = Run::begin(rig.parts(Arc::new(model)), RunId::new(), plan(quick())).await.expect("begun");
    let id = run.id().clone();
    let driven = tokio::spawn(run.drive());
    let mut events = Vec::new();
    loop {
        let next = watcher.next().await.expect("more to come");
        let hangs = matches!(&next.event, Event::ToolCallStarted { id, .. } if id == "b");
        events.push(next);
        if hangs {
            break;
        }
    }
    let begun = Instant::now();
    rig.cancel.cancel();
    let report = driven.await.expect("no panic").expect("an end");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    events.extend(watcher.drain());
    check_ended(&report, &events);
    assert_eq!(report.stop_reason, StopReason::Cancelled);
    let all = results(&report.conversation);
    assert!(
        all[0] == "one\n[exit 0]" && all[1].contains("Stopped by the user") && all[2] == "Not executed: cancelled.",
        "{all:?}"
    );
    assert_eq!(rig.memory.processes(), 0);
    // The run resumes from there.
    let rig = Rig { cancel: tokio_util::sync::CancellationToken::new(), ..rig };
    let report = Run::resume(rig.parts(Arc::new(FakeModel::new(|_, _| done()))), id.clone())
        .await
        .expect("resumed")
        .drive()
        .await
        .expect("an end");
    assert_eq!(report.stop_reason, StopReason::Completed);
    assert_eq!(report.conversation[2].text(), "The run was stopped and goes on now.");
    assert!(matches!(
        Run::resume(rig.parts(Arc::new(FakeModel::new(|_, _| done()))), id).await.err(),
        Some(RunError::Completed(_))
    ));
}

#[tokio::test]
async fn cancel_request_reaches_the_driving_process() {
    let rig = Rig::new();
    rig.memory.on("hang", [Step::Never]);
    let model = FakeModel::new(|_, _| says(vec![bash("a", "hang")]));
    let run = Run::begin(rig.parts(Arc::new(model)), RunId::new(), plan(quick())).await.expect("begun");
    let id = run.id().clone();
    let (report, asked) = tokio::join!(run.drive(), rig.records.request_cancel(&id));
    assert!(asked.expect("asked"));
    assert_eq!(report.expect("an end").stop_reason, StopReason::Cancelled);
}

#[tokio::test]
async fn background_exits_are_reported_once() {
    let rig = Rig::new();
    rig.memory.on("serve", [Step::Sleep(Duration::from_millis(1700)), Step::Exit(3)]);
    let model = FakeModel::new(|turn, _| match turn {
        0 => says(vec![call("a", "bash", json!({ "command": "serve", "run_in_background": true }))]),
        1 => says(vec![bash("b", "sleep 3")]),
        2 => says(vec![bash("c", "echo more")]),
        _ => done(),
    });
    tokio::time::pause();
    let (report, events) = rig.run(Arc::new(model), plan(quick())).await;
    let exits: Vec<&Event> = events
        .iter()
        .map(|one| &one.event)
        .filter(|event| matches!(event, Event::BackgroundExited { exit_code: 3, .. }))
        .collect();
    assert_eq!(exits.len(), 1, "{:?}", results(&report.conversation));
    let notices: Vec<String> = report
        .conversation
        .iter()
        .skip(1)
        .filter(|message| message.role == sandbar_agent::Role::User)
        .map(Message::text)
        .collect();
    assert!(
        notices[1].starts_with("[Background task ") && notices[0].is_empty() && notices[2].is_empty(),
        "{notices:?}"
    );
    assert!(!results(&report.conversation).iter().any(|text| text.contains("has ended")));
    assert!(report.background_tasks.is_empty());
}

/// A checkpointer that counts calls and masks a secret.
#[derive(Default)]
struct CountingCheckpointer {
    log: Mutex<Vec<String>>,
}

#[async_trait]
impl Checkpointer for CountingCheckpointer {
    async fn save(&self) -> Result<Option<String>, CheckpointError> {
        self.log.lock().push("save".into());
        Ok(Some("snapshot-1".into()))
    }

    async fn pause(&self) -> Result<(), CheckpointError> {
        self.log.lock().push("pause".into());
        Err(CheckpointError { what: "pause", source: "not today".into() })
    }

    async fn commit_phase(&self, message: &str) -> Result<PhaseCheckpoint, CheckpointError> {
        self.log.lock().push(message.into());
        Ok(PhaseCheckpoint { commit: Some("abc".into()), ..PhaseCheckpoint::default() })
    }

    fn mask(&self, text: &str) -> String {
        text.replace("hunter2", "[masked]")
    }
}

#[tokio::test]
async fn secrets_are_masked_for_model_and_watchers() {
    let rig = Rig { checkpointer: Arc::new(CountingCheckpointer::default()), ..Rig::new() };
    let model = Arc::new(FakeModel::new(|turn, _| match turn {
        0 => says(vec![Block::Text("pass hunter2".into()), bash("a", "echo it is hunter2; echo hunter2 >> x")]),
        1 => says(vec![call("b", "read_file", json!({ "path": "x" }))]),
        _ => done(),
    }));
    let (report, events) = rig.run(Arc::clone(&model) as Arc<_>, plan(quick())).await;
    let serialized = serde_json::to_string(&events).expect("events");
    assert!(!serialized.contains("hunter2") && serialized.contains("[masked]"), "{serialized}");
    assert!(results(&report.conversation).iter().all(|text| text.contains("[masked]") && !text.contains("hunter2")));
    assert_eq!(rig.memory.get("/home/user/x").expect("the file"), "hunter2\n");
}

#[tokio::test]
async fn phases_are_committed_one_by_one() {
    let place = Arc::new(CountingCheckpointer::default());
    let rig = Rig { checkpointer: Arc::clone(&place) as Arc<_>, ..Rig::new() };
    let phases = ["Build it.\nWell.", "Test it."].map(|goal| PlanPhase { goal: goal.into() });
    let model = FakeModel::new(|turn, _| if turn == 1 { says(vec![bash("a", "echo x")]) } else { done() });
    let (report, events) = rig.run(Arc::new(model), Plan { phases: phases.into(), ..plan(quick()) }).await;
    assert_eq!((report.stop_reason, report.turns), (StopReason::Completed, 3));
    assert_eq!(*place.log.lock(), ["Phase 1: Build it.", "Phase 2: Test it."]);
    assert!(report.conversation[0].text().contains("Phase 1 of 2: Build it.\nWell."));
    assert!(report.conversation[2].text().contains("Phase 2 of 2: Test it."));
    assert!(
        events
            .iter()
            .any(|one| matches!(&one.event, Event::PhaseFinished { phase: 2, commit: Some(id), .. } if id == "abc"))
    );

    place.log.lock().clear();
    let endless = FakeModel::new(|turn, _| says(vec![bash(&format!("t{turn}"), &format!("echo {turn}"))]));
    let (report, events) = rig.run(Arc::new(endless), plan(Settings { max_turns: 2, ..quick() })).await;
    assert_eq!(*place.log.lock(), ["save", "pause"]);
    assert!(report.message.contains("saved, but the sandbox could not be paused"), "{}", report.message);
    assert!(
        events
            .iter()
            .any(|one| matches!(&one.event, Event::Saved { snapshot: Some(name), .. } if name == "snapshot-1"))
    );
}

#[tokio::test]
async fn denied_call_yields_a_result() {
    let rule =
        |tool: &str, pattern: &str, decision| Rule { tool: tool.into(), pattern: Some(pattern.into()), decision };
    let policy = ApprovalPolicy {
        rules: vec![rule("bash", "rm ", ApprovalDecision::Deny), rule("bash", "push", ApprovalDecision::Ask)],
        otherwise: ApprovalDecision::Allow,
    };
    let rig = Rig::new();
    let queue = ApprovalQueue::new(Arc::clone(&rig.records));
    let rig = Rig { approver: Arc::new(queue.clone()), ..rig };
    let model = FakeModel::new(|turn, _| match turn {
        0 => says(vec![bash("a", "rm x"), bash("b", "echo push"), bash("c", "echo push it"), bash("d", "echo ok")]),
        _ => done(),
    });
    let mut watcher = rig.feed.watch();
    let run =
        Run::begin(rig.parts(Arc::new(model)), RunId::new(), Plan { policy, ..plan(quick()) }).await.expect("begun");
    let name = run.id().clone();
    let answering = async {
        let mut events = Vec::new();
        while let Some(next) = watcher.next().await {
            if let Event::ApprovalAsked { id, .. } = &next.event {
                let answer =
                    if id == "b" { ApprovalAnswer::Allow } else { ApprovalAnswer::Deny(Some("not now".into())) };
                let reply = async |answer| queue.reply(&name, id, answer).await.expect("the records work");
                assert_eq!(reply(&answer).await, Reply::Taken);
                assert_eq!(reply(&ApprovalAnswer::Allow).await, Reply::TooLate);
            }
            let last = matches!(next.event, Event::RunFinished { .. });
            events.push(next);
            if last {
                break;
            }
        }
        events
    };
    let (report, events) = tokio::join!(run.drive(), answering);
    let report = report.expect("an end");
    check_ended(&report, &events);
    for (call, expected) in [("a", Reply::NoQuestion), ("d", Reply::NoQuestion), ("b", Reply::TooLate)] {
        assert_eq!(
            queue.reply(&report.run, call, &ApprovalAnswer::Allow).await.expect("the records work"),
            expected,
            "{call}"
        );
    }
    let all = results(&report.conversation);
    assert!(all[0].starts_with("Denied: the policy"), "{all:?}");
    assert_eq!(all[1..], ["push\n[exit 0]", "Denied by the user: not now", "ok\n[exit 0]"]);
}

#[tokio::test]
async fn long_output_is_cut_to_the_result_budget() {
    let rig = Rig::new();
    let model = FakeModel::new(|turn, _| match turn {
        0 => says(vec![bash("a", "seq 1 7000"), bash("b", "seq 1 40000"), bash("c", "seq 1 100")]),
        1 => says((0..4).map(|number| bash(&format!("d{number}"), &format!("seq {number} 5000"))).collect()),
        _ => done(),
    });
    let (report, events) = rig.run(Arc::new(model), plan(quick())).await;
    let all = results(&report.conversation);
    for text in &all[..2] {
        assert!(text.chars().count() <= 30_000 && text.ends_with("\n[exit 0]"), "{}", text.chars().count());
        assert!(text.contains("output truncated at 30000 chars. Full output: /"), "{text}");
    }
    // The counts refer to the whole output, including what the dispatcher had cut.
    assert!(all[1].contains(" of 40000; "), "{}", &all[1][..all[1].find("seq").unwrap_or(2000).min(2000)]);
    assert!(!all[2].contains("truncated"));
    assert!(all[3..7].iter().map(|text| text.chars().count()).sum::<usize>() <= 60_000);
    assert!(matches!(finished(&events, "a"), Event::ToolCallFinished { truncated: true, .. }));
    let path = all[0].split("Full output: ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a path");
    let kept = String::from_utf8(rig.memory.get(path).expect("it is kept").to_vec()).expect("text");
    assert!(kept.starts_with("1\n2\n") && kept.contains("\n7000\n"));
}

#[tokio::test]
async fn watchers_see_what_the_model_saw() {
    let rig = Rig::new();
    let gif = b"GIF89a\x05\x00\x06\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x05\x00\x06\x00\x00\x02\x17\x04A\x10\x04A\x10\x04A\x10\x04A\x10\x04A\x10\x04A\x10\x04A\x10\x04Q\x00;";
    rig.memory.put("/home/user/p.gif", gif.to_vec());
    let model = FakeModel::new(|turn, _| match turn {
        0 => says(vec![bash("a", "echo hello"), call("b", "read_file", json!({ "path": "p.gif" }))]),
        _ => done(),
    });
    let (report, events) = rig.run(Arc::new(model), plan(quick())).await;
    assert!(matches!(finished(&events, "a"), Event::ToolCallFinished { output, .. } if output == "hello\n[exit 0]"));
    let Event::ToolCallFinished { images, .. } = finished(&events, "b") else { panic!("it is finished") };
    assert_eq!(*images, [Image { media_type: "image/gif".into(), width: 5, height: 6 }]);
    let of = async |call: &str, index| {
        let found = sandbar_agent::records::load_image(&*rig.records, &report.run, call, index).await;
        found.expect("the records work").map(|image| image.bytes)
    };
    assert_eq!(of("b", 0).await.as_deref(), Some(&gif[..]));
    assert_eq!((of("b", 1).await, of("a", 0).await, of("z", 0).await), (None, None, None));
}

#[tokio::test(start_paused = true)]
async fn command_output_is_streamed() {
    let rig = Rig::new();
    let (out, err) = (|text: &str| Step::Out(text.into()), |text: &str| Step::Err(text.into()));
    let pause = || Step::Sleep(Duration::from_secs(2));
    rig.memory.on("build", [out("one\ntw"), pause(), out("o\n"), err("oh\n"), pause(), out("three")]);
    let model = FakeModel::new(|turn, _| if turn == 0 { says(vec![bash("a", "build")]) } else { done() });
    let (_, events) = rig.run(Arc::new(model), plan(quick())).await;
    let streamed: Vec<(&str, &str)> = events
        .iter()
        .filter_map(|one| match &one.event {
            Event::ToolOutputDelta { stream, chunk, .. } => Some((stream.as_str(), chunk.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(streamed, [("stdout", "one\n"), ("stdout", "two\n"), ("stderr", "oh\n"), ("stdout", "three")]);
}
