//! Simulates kill -9 at every write: nothing is lost, nothing is done twice, and the conversation
//! stays valid.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandbar_agent::{Message, Model, Run, RunId, RunRecords, StopReason};
use serde_json::json;

use crate::gated_records::{Gated, Side};
use crate::memory_records::MemoryRunRecords;
use crate::support::{FakeModel, Rig, bash, call, done, plan, quick, results, says};

fn memory() -> Arc<dyn RunRecords> {
    Arc::new(MemoryRunRecords::default())
}

pub(crate) const TURNS: usize = 12;

/// A model that counts to twelve in a file, one number per turn, and checks before it repeats a
/// call of unknown outcome. It knows only the conversation.
pub(crate) fn counting() -> Arc<dyn Model> {
    Arc::new(FakeModel::new(|_, messages| {
        let texts = results(messages);
        let ids: Vec<&str> = messages.iter().flat_map(Message::calls).map(|call| call.id.as_str()).collect();
        let last = ids.last().copied().unwrap_or_default();
        let heard = texts.last().map(String::as_str).unwrap_or_default();
        let number: usize = last.split('_').nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
        // The call of the step comes second, after a read.
        if heard.starts_with("outcome unknown:") {
            return says(vec![bash(&format!("look_{number}_{}", ids.len()), "cat count")]);
        }
        let missing = last.starts_with("look") && !heard.lines().any(|line| line == number.to_string());
        let next = if missing { number } else { number + 1 };
        if next > TURNS {
            return done();
        }
        let read = call(&format!("read_{next}_{}", ids.len()), "glob", json!({ "pattern": "*" }));
        says(vec![read, bash(&format!("step_{next}_{}", ids.len()), &format!("echo {next} >> count"))])
    }))
}

#[tokio::test(start_paused = true)]
async fn run_killed_at_any_write_ends_the_same() {
    let expected: String = (1..=TURNS).map(|number| format!("{number}\n")).collect();
    let mut unknown = 0;
    for kill in [Side::Before, Side::After] {
        for at in 0.. {
            let inner = memory();
            let (records, dead) = Gated::blocking_at(&inner, kill, at);
            let rig = Rig { records, ..Rig::new() };
            let id = RunId::new();
            let work = async {
                let run = Run::begin(rig.parts(counting()), id.clone(), plan(quick())).await.expect("begun");
                run.drive().await.expect("an end")
            };
            let finished = tokio::select! {
                biased;
                report = work => Some(report),
                () = dead.notified() => None,
            };
            let memory = Arc::clone(&rig.memory);
            let count = || memory.get("/home/user/count").map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            if let Some(report) = finished {
                assert_eq!((report.stop_reason, count()), (StopReason::Completed, Some(expected.clone())));
                assert!(at > 2 * TURNS as u64, "there are more writes than {at}");
                break;
            }
            // Commands that started in the sandbox continue without the killed process.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let rig = Rig { records: inner, ..rig };
            let again = match Run::resume(rig.parts(counting()), id.clone()).await {
                Ok(run) => run.drive().await.expect("an end"),
                // Killed just after the final entry was written.
                Err(error) => {
                    assert!(matches!(error, sandbar_agent::RunError::Completed(_)), "{error}");
                    assert_eq!(count().as_ref(), Some(&expected));
                    continue;
                }
            };
            assert_eq!(again.stop_reason, StopReason::Completed, "{kill:?} {at}: {}", again.message);
            assert_eq!(
                count().as_ref(),
                Some(&expected),
                "killed {kill:?} write {at}: {:#?}",
                results(&again.conversation)
            );
            unknown += results(&again.conversation).iter().filter(|text| text.starts_with("outcome unknown:")).count();
            check_record(&rig, &id).await;
        }
    }
    // The outcome is unknown only between the start and the end of a call.
    assert_eq!(unknown, 2 * TURNS);
}

/// Every call has one start and one end, across both processes.
pub(crate) async fn check_record(rig: &Rig, id: &RunId) {
    let entries = rig.records.entries(id, 0).await.expect("entries");
    let of = |kind: &str| {
        let mut ids: Vec<String> = entries
            .iter()
            .map(|entry| serde_json::to_value(&entry.happened).expect("an event"))
            .filter(|event| event["type"] == kind)
            .map(|event| event["id"].as_str().expect("an id").to_owned())
            .collect();
        ids.sort();
        ids
    };
    let (begun, ended) = (of("tool_call_started"), of("tool_call_finished"));
    assert_eq!(begun, ended);
    assert!(begun.is_sorted_by(|a, b| a < b), "a call was begun twice: {begun:?}");
    assert!(entries.is_sorted_by(|a, b| a.happened.seq < b.happened.seq));
}

#[tokio::test]
async fn interrupted_write_reports_the_file_state() {
    for (content, found) in
        [("new\n", "has exactly this content now"), ("old\n", "exists with other content"), ("", "does not exist")]
    {
        let (inner, id) = (memory(), RunId::new());
        // The third write starts the call.
        let (records, dead) = Gated::blocking_at(&inner, Side::After, 2);
        let rig = Rig { records, ..Rig::new() };
        let model = || {
            Arc::new(FakeModel::new(|_, messages| match messages.len() {
                1 => says(vec![
                    call("w", "write_file", json!({ "path": "/home/user/x", "content": "new\n" })),
                    bash("b", "echo on"),
                ]),
                _ => done(),
            }))
        };
        let work =
            async { Run::begin(rig.parts(model()), id.clone(), plan(quick())).await.expect("begun").drive().await };
        tokio::select! {
            _ = work => panic!("it was not killed"),
            () = dead.notified() => {}
        }
        if !content.is_empty() {
            rig.memory.put("/home/user/x", content);
        }
        let rig = Rig { records: inner, ..rig };
        let report = Run::resume(rig.parts(model()), id).await.expect("resumed").drive().await.expect("an end");
        let all = results(&report.conversation);
        assert!(all[0].starts_with("outcome unknown: ") && all[0].contains(found), "{}", all[0]);
        // A call that had not started is executed normally.
        assert_eq!(all[1], "on\n[exit 0]");
    }
}

#[tokio::test]
async fn resumed_script_handles_the_interruption_first() {
    let (inner, id) = (memory(), RunId::new());
    let (records, dead) = Gated::blocking_at(&inner, Side::After, 4);
    let rig = Rig { records, ..Rig::new() };
    let turn = |command: &str| json!({ "tool_calls": [{ "name": "bash", "input": { "command": command } }] });
    let model = || {
        let mut third = turn("echo three >> log");
        third["if_interrupted"] = turn("test -f log && echo looked >> log");
        crate::support::script(&json!([turn("echo one >> log"), turn("echo two >> other"), third, { "text": "Done." }]))
    };
    let work = async { Run::begin(rig.parts(model()), id.clone(), plan(quick())).await.expect("begun").drive().await };
    tokio::select! {
        _ = work => panic!("it was not killed"),
        () = dead.notified() => {}
    }
    let rig = Rig { records: inner, ..rig };
    let report = Run::resume(rig.parts(model()), id).await.expect("resumed").drive().await.expect("an end");
    assert_eq!((report.stop_reason, report.text.as_str()), (StopReason::Completed, "Done."));
    assert_eq!(rig.memory.get("/home/user/log").expect("the file"), "one\nlooked\nthree\n");
}

#[tokio::test]
async fn two_processes_cannot_drive_one_run() {
    let rig = Rig::new();
    let slow = || {
        Arc::new(FakeModel::new(|turn, _| {
            if turn < 3 { says(vec![bash(&format!("t{turn}{:x}", next_id()), "echo x")]) } else { done() }
        }))
    };
    let id = RunId::new();
    let first = Run::begin(rig.parts(slow()), id.clone(), plan(quick())).await.expect("begun");
    let second = Run::resume(rig.parts(slow()), id.clone()).await.expect("resumed");
    let taken = first.drive().await.expect_err("it was taken");
    assert!(matches!(taken, sandbar_agent::RunError::Taken(_)), "{taken}");
    assert_eq!(second.drive().await.expect("an end").stop_reason, StopReason::Completed);
}

/// Ids differ between the two.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn interrupted_handling_is_repeated() {
    let step = |number: usize| format!("echo {number} >> log && touch done{number}");
    let bash = |command: String| json!({ "tool_calls": [{ "name": "bash", "input": { "command": command } }] });
    let model = || {
        let turn = |number: usize| {
            let mut turn = if number <= 3 { bash(step(number)) } else { json!({ "text": "Done." }) };
            if number > 1 {
                let check = format!("test -f done{} || ( {} )", number - 1, step(number - 1));
                turn["if_interrupted"] = bash(check);
            }
            turn
        };
        crate::support::script(&json!((1..=4).map(turn).collect::<Vec<_>>()))
    };
    for (first, second) in (1..7).flat_map(|first| (0..6).map(move |second| (first, second))) {
        let (inner, id) = (memory(), RunId::new());
        let mut rig = Rig::new();
        for (begun, at) in [(false, first), (true, second)] {
            let (records, dead) = Gated::blocking_at(&inner, Side::After, at);
            rig = Rig { records, ..rig };
            let work = async {
                let parts = rig.parts(model());
                let run = if begun {
                    Run::resume(parts, id.clone()).await
                } else {
                    Run::begin(parts, id.clone(), plan(quick())).await
                };
                run.expect("it begins").drive().await.expect("an end")
            };
            tokio::select! {
                biased;
                _ = work => {}
                () = dead.notified() => {}
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        let rig = Rig { records: inner, ..rig };
        if let Ok(run) = Run::resume(rig.parts(model()), id).await {
            assert_eq!(run.drive().await.expect("an end").stop_reason, StopReason::Completed);
        }
        assert_eq!(
            rig.memory.get("/home/user/log").expect("the file"),
            "1\n2\n3\n",
            "killed at {first}, then at {second}"
        );
    }
}

#[tokio::test]
async fn stuck_counts_survive_a_crash() {
    let model =
        || Arc::new(FakeModel::new(|_, messages| says(vec![bash(&format!("t{}", messages.len()), "cat nothing")])));
    // Three results are recorded by then, and nothing of the fourth call.
    for (side, at) in [(Side::After, 7), (Side::Before, 8)] {
        let (inner, id) = (memory(), RunId::new());
        let (records, dead) = Gated::blocking_at(&inner, side, at);
        let rig = Rig { records, ..Rig::new() };
        let work =
            async { Run::begin(rig.parts(model()), id.clone(), plan(quick())).await.expect("begun").drive().await };
        tokio::select! {
            _ = work => panic!("it was not killed"),
            () = dead.notified() => {}
        }
        let rig = Rig { records: inner, ..rig };
        let report = Run::resume(rig.parts(model()), id).await.expect("resumed").drive().await.expect("an end");
        assert_eq!(report.stop_reason, StopReason::Stuck, "{}", report.message);
        let all = results(&report.conversation);
        assert!(all.len() == 5 && all[2].contains("3 times"), "{all:#?}");
    }
}
