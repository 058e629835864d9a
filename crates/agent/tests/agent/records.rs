//! Contract of the run records, on memory, SQLite and a real Postgres.

use std::sync::Arc;

use jiff::Timestamp;
use sandbar_agent::approval::ApprovalAnswer;
use sandbar_agent::model::Usage;
use sandbar_agent::records::{AppendError, DatabaseRunRecords, Head, JournalEntry, RunRecord, RunState};
use sandbar_agent::{Change, Event, Happened, Message, RunId, RunRecords, StopReason};
use sdk::Secret;

use crate::memory_records::MemoryRunRecords;
use crate::support::{plan, quick};

/// Two handles to the same records, as two processes have them.
type Pair = (Arc<dyn RunRecords>, Arc<dyn RunRecords>);

async fn open(url: &str) -> Arc<dyn RunRecords> {
    Arc::new(DatabaseRunRecords::open(&Secret::from(url)).await.expect("the records open"))
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).expect("a time")
}

fn head(turns: u64) -> Head {
    let usage = Usage { input_tokens: 5, output_tokens: turns, ..Usage::default() };
    Head { state: RunState::Running, stop_reason: None, turns, usage, cost_nanos: 7, seen_at: at(10) }
}

fn entry(seq: u64, text: &str) -> JournalEntry {
    let happened = Happened { seq, ts: at(9), turn: 1, dropped: 0, event: Event::Message { text: text.into() } };
    JournalEntry { happened, change: Some(Change::UserMessage { message: Message::user(text) }) }
}

fn run(created: i64) -> RunRecord {
    RunRecord {
        id: RunId::new(),
        plan: plan(quick()),
        created_at: at(created),
        head: head(0),
        cancel_asked: false,
        entries: 0,
    }
}

async fn contract((one, two): Pair) {
    let (old, new) = (run(1), run(2));
    one.begin(&old).await.expect("begun");
    one.begin(&new).await.expect("begun");
    assert!(two.begin(&old).await.is_err(), "a run begins once");
    assert_eq!(two.runs().await.expect("runs"), [new.clone(), old.clone()]);
    assert_eq!(two.run(&RunId::new()).await.expect("an answer"), None);

    one.append(&old.id, 0, &[entry(3, "ä\"\n"), entry(5, "b")], &head(1)).await.expect("written");
    let refused = two.append(&old.id, 0, &[entry(4, "x")], &head(9)).await;
    assert!(matches!(refused, Err(AppendError::Taken(_))), "{refused:?}");
    two.append(&old.id, 2, &[entry(8, "c")], &head(2)).await.expect("written");
    let all = one.entries(&old.id, 0).await.expect("entries");
    assert_eq!(all, [entry(3, "ä\"\n"), entry(5, "b"), entry(8, "c")]);
    assert_eq!(one.entries(&old.id, 2).await.expect("entries"), [entry(8, "c")]);
    assert!(one.entries(&new.id, 0).await.expect("entries").is_empty());
    let read = one.run(&old.id).await.expect("read").expect("a run");
    assert_eq!((read.head, read.entries, read.plan), (head(2), 3, old.plan.clone()));

    assert!(!one.heartbeat(&old.id, at(20)).await.expect("touched"));
    assert!(two.request_cancel(&old.id).await.expect("asked"));
    assert!(!two.request_cancel(&RunId::new()).await.expect("asked"));
    assert!(one.heartbeat(&old.id, at(21)).await.expect("touched"));
    let read = one.run(&old.id).await.expect("read").expect("a run");
    assert!(read.cancel_asked && read.head.seen_at == at(21) && read.head.turns == 2);
    one.clear_cancel_request(&old.id).await.expect("forgotten");
    assert!(!one.heartbeat(&old.id, at(22)).await.expect("touched"));

    let mut plan = old.plan.clone();
    plan.settings.max_turns = 7;
    one.update_plan(&old.id, &plan).await.expect("plan updated");
    let end = Head { state: RunState::Finished, stop_reason: Some(StopReason::MaxCost), ..head(3) };
    one.append(&old.id, 3, &[entry(9, "d")], &end).await.expect("written");
    let read = two.run(&old.id).await.expect("read").expect("a run");
    assert_eq!((read.head, read.plan.settings.max_turns), (end.clone(), 7));

    let entry_at = |seq, event| {
        let happened = Happened { seq, ts: at(9), turn: 1, dropped: 0, event };
        JournalEntry { happened, change: None }
    };
    let asked = entry_at(10, Event::ApprovalAsked { id: "call_1".into(), tool: "bash".into(), args: "x".into() });
    let other = entry_at(11, Event::ApprovalAsked { id: "callX1".into(), tool: "bash".into(), args: "call_1".into() });
    one.append(&old.id, 4, &[asked.clone(), other], &end).await.expect("written");
    assert_eq!(two.entries_of_call(&old.id, "call_1").await.expect("entries"), [asked]);
    assert_eq!(two.find_answer(&old.id, "call_1").await.expect("read"), None);
    let no = ApprovalAnswer::Deny(Some("ä".into()));
    assert!(one.record_answer(&old.id, "call_1", &no).await.expect("answered"));
    assert!(
        !two.record_answer(&old.id, "call_1", &ApprovalAnswer::Allow).await.expect("an answer"),
        "the first answer counts"
    );
    assert_eq!(two.find_answer(&old.id, "call_1").await.expect("read"), Some(no));
    assert_eq!(two.find_answer(&new.id, "call_1").await.expect("read"), None);

    // Of many concurrent appends at the same position, one succeeds.
    let tries = (0..8).map(|number| {
        let (records, id) = (Arc::clone(if number % 2 == 0 { &one } else { &two }), new.id.clone());
        tokio::spawn(async move { records.append(&id, 0, &[entry(number, "x")], &head(1)).await.is_ok() })
    });
    let won = futures::future::join_all(tries).await.into_iter().filter(|won| *won.as_ref().expect("no panic")).count();
    assert_eq!(won, 1);

    for _ in 0..2 {
        one.remove(&old.id).await.expect("removed, also when it is gone");
        assert_eq!(two.run(&old.id).await.expect("read"), None);
        assert!(two.entries(&old.id, 0).await.expect("entries").is_empty());
        assert_eq!(two.find_answer(&old.id, "call_1").await.expect("read"), None);
    }
    assert_eq!(two.entries(&new.id, 0).await.expect("entries").len(), 1, "another's stay");
}

#[tokio::test]
async fn memory() {
    let records: Arc<dyn RunRecords> = Arc::new(MemoryRunRecords::default());
    contract((Arc::clone(&records), records)).await;
}

#[tokio::test]
async fn sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}/records.sqlite", directory.path().display());
    // Together with the records of workspaces, which are opened before or after.
    let workspaces = workspace::records::DatabaseRecords::open(&Secret::from(url.as_str())).await.expect("it opens");
    contract((open(&url).await, open(&url).await)).await;
    workspaces.close().await.expect("it closes");
}

#[tokio::test]
async fn postgres() {
    let url = tokio::task::spawn_blocking(testing::postgres::database).await.expect("Postgres starts");
    contract((open(&url).await, open(&url).await)).await;
}
