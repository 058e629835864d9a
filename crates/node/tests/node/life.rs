//! Life cycles of sandboxes, with paused time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Lab, new_sandbox, pausing, with_spec};
use engine::EngineError;
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::log::LogLevel;
use sandbar_node::memory::guest_config;
use sandbar_node::{
    Closing, CreateError, FilesId, IdempotencyKey, NewSandbox, Node, OnTimeout, PersistedState, Reachability, Resumed,
    SandboxError, SandboxId,
};
use testing::{SOON, eventually_async};

const SECOND: Duration = Duration::from_secs(1);

fn standing(node: &Node, id: &SandboxId) -> Option<PersistedState> {
    node.get(id).map(|seen| seen.standing)
}

fn is_open(node: &Node, id: &SandboxId) -> bool {
    matches!(node.reachability(id), Some((_, Reachability::Open(_))))
}

async fn create(node: &Node, new: NewSandbox) -> SandboxId {
    node.create(new, None).await.expect("it is made").id
}

#[tokio::test(start_paused = true)]
async fn a_created_sandbox_runs_until_it_is_killed() {
    let lab = Lab::new();
    let node = lab.open().await;
    let created = node.create(new_sandbox(), None).await.expect("it is made");
    assert_eq!(standing(&node, &created.id), Some(PersistedState::Running));
    assert!(created.access_token.is_some() && created.traffic_token.is_none());
    let record = lab.records.all().await.expect("records").remove(0);
    assert_eq!((record.id.clone(), record.access_token), (created.id.clone(), created.access_token));
    let Some((_, Reachability::Open(live))) = node.reachability(&created.id) else { panic!("it can be reached") };

    node.kill(&created.id).await.expect("it is killed");
    assert!(live.disconnect.is_cancelled());
    assert!(node.reachability(&created.id).is_none());
    assert_eq!(standing(&node, &created.id), None);
    assert!(lab.records.all().await.expect("records").is_empty());
    assert!(lab.engine.running().is_empty() && lab.engine.files().is_empty());
    assert!(matches!(node.kill(&created.id).await, Err(SandboxError::NotFound(_))));
}

/// A command can be sent while the owner of the sandbox ends: after the owner has emptied its queue
/// and before the sender finds it closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_command_that_meets_the_end_is_answered() {
    let lab = Lab::new();
    let node = lab.open().await;
    for round in 0..1000 {
        let id = create(&node, new_sandbox()).await;
        let kill = || {
            let (node, id) = (Arc::clone(&node), id.clone());
            // Again at once after the first success: the owner is about to end then.
            tokio::spawn(async move { while node.kill(&id).await.is_ok() {} })
        };
        for killed in [kill(), kill(), kill(), kill()] {
            let answered = tokio::time::timeout(30 * SECOND, killed).await;
            answered.unwrap_or_else(|_| panic!("round {round}: no answer")).expect("no panic");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_kills_on_time_and_not_before() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = create(&node, new_sandbox()).await;
    tokio::time::sleep(59 * SECOND).await;
    assert!(is_open(&node, &id));
    tokio::time::sleep(2 * SECOND).await;
    eventually_async("the lease has ended it", SOON, async || node.get(&id).is_none()).await;
    assert!(lab.engine.files().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_pauses_keeps_what_it_says() {
    let lab = Lab::new();
    let node = lab.open().await;
    for kept in [PauseMode::Full, PauseMode::Filesystem] {
        let id = create(&node, pausing(kept)).await;
        let end = node.get(&id).expect("it runs").record.end_at;
        tokio::time::sleep(61 * SECOND).await;
        eventually_async("it is paused", SOON, async || standing(&node, &id) == Some(PersistedState::Paused(kept)))
            .await;
        assert_eq!(lab.engine.running().contains(&id), kept == PauseMode::Full);
        assert_eq!(lab.engine.is_frozen(&id), kept == PauseMode::Full);
        assert!(lab.engine.files().contains(&FilesId::from(&id)));
        let paused_at = node.get(&id).expect("it is paused").record.end_at;
        assert!(paused_at >= end && paused_at.duration_since(end).as_secs() < 1, "{end} {paused_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn timeouts_set_connects_extend_refreshes_extend() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = create(&node, new_sandbox()).await;
    let end = || node.get(&id).expect("it runs").record.end_at;
    let first = end();

    node.connect(&id, 10 * SECOND, PauseMode::Full).await.expect("it runs");
    node.refresh(&id, 10 * SECOND).await.expect("it runs");
    assert_eq!(end(), first, "shorter leaves it alone, to the microsecond");
    node.set_timeout(&id, 5 * SECOND).await.expect("it runs");
    assert!(end() < first);
    assert_eq!(node.connect(&id, 600 * SECOND, PauseMode::Full).await.expect("it runs"), Resumed::WasRunning);
    assert!(end() > first);
    tokio::time::sleep(500 * SECOND).await;
    assert!(is_open(&node, &id));

    let expected = u64::try_from(end().as_millisecond()).expect("after 1970");
    eventually_async("the guest knows", SOON, async || lab.leases_of(id.as_str()).last() == Some(&Some(expected)))
        .await;
    node.set_timeout(&id, Duration::ZERO).await.expect("it runs");
    eventually_async("now means now", SOON, async || node.get(&id).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_memory_pause_keeps_the_boot_and_a_files_pause_does_not() {
    let lab = Lab::new();
    let node = lab.open().await;
    let created = node.create(new_sandbox(), None).await.expect("it is made");
    let id = created.id;
    let boot = |node: &Node| node.get(&id).expect("it is there").record.boot_id.clone();
    let first = boot(&node);
    let Some((_, Reachability::Open(live))) = node.reachability(&id) else { panic!("it can be reached") };

    node.pause(&id, PauseMode::Full, true).await.expect("it pauses");
    assert!(live.disconnect.is_cancelled() && !is_open(&node, &id));
    assert_eq!(lab.leases_of(id.as_str()).last(), Some(&None), "a frozen guest has no lease to miss");
    assert!(matches!(node.pause(&id, PauseMode::Full, false).await, Err(SandboxError::AlreadyPaused(_))));
    assert!(matches!(node.set_timeout(&id, SECOND).await, Err(SandboxError::NotRunning { .. })));
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!(node.connect(&id, 300 * SECOND, PauseMode::Full).await.expect("it resumes"), Resumed::FromPause);
    assert_eq!(boot(&node), first);
    assert!(is_open(&node, &id) && !lab.engine.is_frozen(&id));
    assert!(matches!(node.resume(&id, SECOND, PauseMode::Full, None).await, Err(SandboxError::AlreadyRunning(_))));

    node.pause(&id, PauseMode::Filesystem, false).await.expect("it pauses");
    assert!(lab.engine.running().is_empty());
    node.resume(&id, 300 * SECOND, PauseMode::Full, None).await.expect("it resumes");
    let second = boot(&node);
    assert_ne!(second, first);

    node.pause(&id, PauseMode::Full, false).await.expect("it pauses");
    node.connect(&id, 300 * SECOND, PauseMode::Filesystem).await.expect("it reboots");
    assert_ne!(boot(&node), second);
    assert_eq!(lab.engine.boots().len(), 3);
    let tokens: HashSet<_> =
        lab.engine.boots().iter().map(|boot| guest_config(boot).expect("JSON").access_token).collect();
    assert_eq!(tokens.len(), 1, "the token never changes");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_dies_loses_no_file() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = create(&node, new_sandbox()).await;
    lab.engine.crash(&id);
    eventually_async("the loss is seen", SOON, async || {
        standing(&node, &id) == Some(PersistedState::Paused(PauseMode::Filesystem))
    })
    .await;
    assert!(lab.engine.files().contains(&FilesId::from(&id)));
    let log = node.log(&id).await.expect("a log");
    assert!(log.iter().any(|entry| entry.message.contains("ended unexpectedly")), "{log:?}");
    tokio::time::sleep(3600 * SECOND).await;
    node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect("it resumes from its files");
    assert!(is_open(&node, &id));

    node.pause(&id, PauseMode::Full, false).await.expect("it pauses");
    lab.engine.crash(&id);
    eventually_async("the loss is seen", SOON, async || {
        standing(&node, &id) == Some(PersistedState::Paused(PauseMode::Filesystem))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn traffic_resumes_sandboxes_with_auto_resume() {
    let lab = Lab::new();
    let node = lab.open().await;
    let resumable = create(
        &node,
        with_spec(|spec| {
            spec.auto_resume = true;
            spec.on_timeout = OnTimeout::Pause(PauseMode::Full);
        }),
    )
    .await;
    let paused = create(&node, pausing(PauseMode::Full)).await;
    node.pause(&resumable, PauseMode::Full, false).await.expect("it pauses");
    node.pause(&paused, PauseMode::Full, false).await.expect("it pauses");
    assert!(matches!(node.reachability(&paused), Some((_, Reachability::Closed))));
    assert!(matches!(node.reachability(&resumable), Some((_, Reachability::Resumable(Some(_))))));
    let (one, other) = tokio::join!(node.auto_resume(&resumable), node.auto_resume(&resumable));
    assert!(one.is_ok() && other.is_ok() && is_open(&node, &resumable));
    let left = node.get(&resumable).expect("it runs").record.end_at.duration_since(node.now());
    assert!((299..=300).contains(&left.as_secs()), "{left:?}");

    node.pause(&resumable, PauseMode::Filesystem, false).await.expect("it pauses");
    assert!(
        matches!(node.reachability(&resumable), Some((_, Reachability::Closed))),
        "without memory nothing wakes by itself"
    );
}

#[tokio::test(start_paused = true)]
async fn a_create_is_made_once_for_each_key() {
    let lab = Lab::new();
    let node = lab.open().await;
    let key = |print: &str| Some(IdempotencyKey { key: "k".to_owned(), fingerprint: print.to_owned() });
    let (first, second) = tokio::join!(node.create(new_sandbox(), key("a")), node.create(new_sandbox(), key("a")));
    assert!(matches!(second, Err(CreateError::KeyInProgress)));
    let first = first.expect("it is made");
    assert_eq!(node.create(new_sandbox(), key("a")).await.expect("it is repeated"), first);
    assert!(matches!(node.create(new_sandbox(), key("b")).await, Err(CreateError::KeyMismatch)));
    assert_eq!(lab.engine.boots().len(), 1);
    node.kill(&first.id).await.expect("it is killed");
    assert_eq!(node.create(new_sandbox(), key("a")).await.expect("it is repeated"), first);

    lab.engine.refuse_boots(Some(|| EngineError::NoSpace("df -h /data".to_owned())));
    let other = || Some(IdempotencyKey { key: "other".to_owned(), fingerprint: "a".to_owned() });
    assert!(node.create(new_sandbox(), other()).await.is_err());
    lab.engine.refuse_boots(None);
    node.create(new_sandbox(), other()).await.expect("a failed create may be repeated");
}

#[tokio::test(start_paused = true)]
async fn a_failed_create_leaves_nothing() {
    let mut lab = Lab::new();
    lab.config.max_sandboxes = 1;
    let node = lab.open().await;
    lab.engine.refuse_boots(Some(|| EngineError::NoSpace("df -h /data".to_owned())));
    let refused = node.create(new_sandbox(), None).await;
    assert!(matches!(refused, Err(CreateError::Sandbox(SandboxError::Engine(EngineError::NoSpace(_))))));
    assert!(node.all().is_empty() && lab.records.all().await.expect("records").is_empty());

    lab.engine.refuse_boots(None);
    let id = create(&node, new_sandbox()).await;
    let full = node.create(new_sandbox(), None).await;
    assert!(matches!(full, Err(CreateError::Sandbox(SandboxError::Full { limit: 1 }))));
    node.pause(&id, PauseMode::Full, false).await.expect("it pauses");
    assert!(node.create(new_sandbox(), None).await.is_err(), "frozen memory is memory");
    node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect("it resumes");
    node.pause(&id, PauseMode::Filesystem, false).await.expect("it pauses");
    let other = create(&node, new_sandbox()).await;
    assert!(matches!(node.connect(&id, SECOND, PauseMode::Full).await, Err(SandboxError::Full { .. })));
    assert_eq!(standing(&node, &id), Some(PersistedState::Paused(PauseMode::Filesystem)));
    node.kill(&other).await.expect("it is killed");
    lab.engine.refuse_boots(Some(|| EngineError::NoSpace("df -h /data".to_owned())));
    assert!(node.connect(&id, SECOND, PauseMode::Full).await.is_err());
    assert_eq!(
        standing(&node, &id),
        Some(PersistedState::Paused(PauseMode::Filesystem)),
        "a failed resume leaves it paused"
    );
    lab.engine.refuse_boots(None);
    node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect("it resumes");
}

#[tokio::test(start_paused = true)]
async fn metrics_and_logs_are_collected() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = create(&node, new_sandbox()).await;
    let start = node.now();
    tokio::time::sleep(12 * SECOND).await;
    eventually_async("readings at 1, 6 and 11 s", SOON, async || {
        node.metrics(&id, None, None).expect("it runs").len() == 3
    })
    .await;
    assert_eq!(node.metrics(&id, None, Some(start)).expect("it runs").len(), 0);
    assert!(node.latest_metric(&id).is_some());
    let log = node.log(&id).await.expect("a log");
    assert!(log.iter().any(|entry| entry.message == "from the guest"));
    assert!(log.iter().any(|entry| entry.message == "sandbox started"));
}

#[tokio::test(start_paused = true)]
async fn processes_killed_for_want_of_memory_are_in_the_log() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = create(&node, new_sandbox()).await;
    let reports = async || {
        let log = node.log(&id).await.expect("a log");
        let reports = log.into_iter().filter(|entry| entry.message.starts_with("out of memory: "));
        reports.map(|entry| (entry.level, entry.message)).collect::<Vec<_>>()
    };
    let readings = async |count: usize| {
        eventually_async("a reading", SOON, async || node.metrics(&id, None, None).expect("it runs").len() == count)
            .await;
    };
    tokio::time::sleep(2 * SECOND).await;
    readings(1).await;
    assert_eq!(reports().await, []);
    lab.engine.run_out_of_memory(&id, 2);
    tokio::time::sleep(5 * SECOND).await;
    readings(2).await;
    lab.engine.run_out_of_memory(&id, 1);
    tokio::time::sleep(10 * SECOND).await;
    readings(4).await;
    let memory = node.get(&id).expect("it runs").record.spec.resources.memory_mb;
    let report = |what: &str| (LogLevel::Warn, format!("out of memory: {what} killed (limit {memory} MB)"));
    assert_eq!(reports().await, [report("2 processes were"), report("1 process was")]);
}

#[tokio::test(start_paused = true)]
async fn closing_keeps_or_ends() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = create(&node, new_sandbox()).await;
    let paused = create(&node, new_sandbox()).await;
    node.pause(&paused, PauseMode::Full, false).await.expect("it pauses");
    assert_eq!(node.close(Closing::Keep).await.expect("it closes"), 1);
    assert_eq!(lab.engine.running(), HashSet::from([id.clone(), paused]));
    assert!(matches!(node.create(new_sandbox(), None).await, Err(CreateError::Sandbox(SandboxError::Stopping))));

    let node = lab.open().await;
    assert!(is_open(&node, &id));
    assert_eq!(node.close(Closing::End).await.expect("it closes"), 2);
    assert!(lab.engine.running().is_empty() && lab.engine.files().is_empty());
    assert!(lab.records.all().await.expect("records").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_idempotency_key_expires_after_a_day() {
    let lab = Lab::new();
    let node = lab.open().await;
    let key = || Some(IdempotencyKey { key: "k".to_owned(), fingerprint: "a".to_owned() });
    let first = node.create(new_sandbox(), key()).await.expect("it is made");
    tokio::time::sleep(Duration::from_secs(23 * 3600)).await;
    assert_eq!(node.create(new_sandbox(), key()).await.expect("it is repeated"), first);
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_ne!(node.create(new_sandbox(), key()).await.expect("another one is made"), first);
}
