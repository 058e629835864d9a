//! Restarts: what a server does with the machines and records of an earlier one. The earlier one is
//! not closed: that is what kill -9 looks like from the records.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{Lab, new_sandbox, pausing};
use egress::{Policy, Rules};
use engine::{Boot, BootFiles, Engine};
use protocol::guest::GuestConfig;
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::{FilesId, Node, PersistedState, Reachability, Record, SandboxId, new_sandbox_id};
use testing::{SOON, eventually_async};

const SECOND: Duration = Duration::from_secs(1);

/// Creates a sandbox with a server that is then closed, and returns its record.
async fn left_behind(lab: &Lab, new: sandbar_node::NewSandbox) -> Record {
    let node = lab.open().await;
    let id = node.create(new, None).await.expect("it is made").id;
    let record = (*node.get(&id).expect("it runs").record).clone();
    node.close(sandbar_node::Closing::Keep).await.expect("it closes");
    record
}

fn standing(node: &Node, id: &SandboxId) -> Option<PersistedState> {
    node.get(id).map(|seen| seen.standing)
}

#[tokio::test(start_paused = true)]
async fn running_machines_are_adopted_with_their_settings() {
    let lab = Lab::new();
    let before = left_behind(&lab, new_sandbox()).await;
    let node = lab.open().await;
    let seen = node.get(&before.id).expect("it is there");
    assert_eq!(*seen.record, before);
    assert!(matches!(node.reachability(&before.id), Some((_, Reachability::Open(_)))));
    let lease = u64::try_from(before.end_at.as_millisecond()).expect("after 1970");
    let leases = || lab.leases_of(before.id.as_str());
    eventually_async("the guest is told its lease again", SOON, async || {
        leases().len() == 2 && leases()[1] == Some(lease)
    })
    .await;
    tokio::time::sleep(61 * SECOND).await;
    eventually_async("the lease still holds", SOON, async || node.get(&before.id).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn dead_machines_keep_their_files() {
    let lab = Lab::new();
    let before = left_behind(&lab, new_sandbox()).await;
    lab.engine.crash(&before.id);
    let node = lab.open().await;
    assert_eq!(standing(&node, &before.id), Some(PersistedState::Paused(PauseMode::Filesystem)));
    let log = node.log(&before.id).await.expect("a log");
    assert!(log.iter().any(|entry| entry.message.contains("gone when the server started")), "{log:?}");
    node.connect(&before.id, 60 * SECOND, PauseMode::Full).await.expect("it resumes");
    let after = node.get(&before.id).expect("it runs").record;
    assert_eq!(after.access_token, before.access_token);
    assert_ne!(after.boot_id, before.boot_id);
}

#[tokio::test(start_paused = true)]
async fn leases_that_ended_meanwhile_are_carried_out() {
    let lab = Lab::new();
    let killed = left_behind(&lab, new_sandbox()).await.id;
    let frozen = left_behind(&lab, pausing(PauseMode::Full)).await.id;
    let stopped = left_behind(&lab, pausing(PauseMode::Filesystem)).await.id;
    let died = left_behind(&lab, pausing(PauseMode::Full)).await.id;
    lab.engine.crash(&died);
    tokio::time::sleep(61 * SECOND).await;
    let node = lab.open().await;
    assert_eq!(standing(&node, &killed), None);
    assert_eq!(standing(&node, &frozen), Some(PersistedState::Paused(PauseMode::Full)));
    assert_eq!(standing(&node, &stopped), Some(PersistedState::Paused(PauseMode::Filesystem)));
    assert_eq!(standing(&node, &died), Some(PersistedState::Paused(PauseMode::Filesystem)));
    assert_eq!(lab.engine.running(), HashSet::from([frozen.clone()]));
    assert!(lab.engine.is_frozen(&frozen));
    assert_eq!(lab.engine.files(), HashSet::from([&frozen, &stopped, &died].map(FilesId::from)));
}

#[tokio::test(start_paused = true)]
async fn changes_cut_short_are_undone() {
    let lab = Lab::new();
    // Frozen, and the pause was not recorded.
    let pausing = left_behind(&lab, new_sandbox()).await;
    let instance = pausing.instance.expect("it runs");
    let machine = lab
        .engine
        .adopt(&pausing.id, instance, Policy::unheard(Rules::default()))
        .await
        .expect("the engine works")
        .expect("alive");
    machine.freeze().await.expect("it freezes");
    // Thawed, and the resume was not recorded.
    let mut resuming = left_behind(&lab, new_sandbox()).await;
    resuming.standing = PersistedState::Paused(PauseMode::Full);
    lab.records.put(&resuming).await.expect("it is recorded");
    // Booted, and neither a create nor a resume was recorded.
    let mut booting = left_behind(&lab, new_sandbox()).await;
    booting.standing = PersistedState::Paused(PauseMode::Filesystem);
    booting.instance = None;
    lab.records.put(&booting).await.expect("it is recorded");
    let unknown = new_sandbox_id();
    let guest = GuestConfig { sandbox_id: unknown.to_string(), ..GuestConfig::default() };
    let resources = pausing.spec.resources;
    let boot = Boot {
        id: unknown,
        files: BootFiles::Create,
        resources,
        egress: Policy::unheard(Rules::default()),
        volumes: Vec::new(),
        boot_id: String::new(),
        hostname: String::new(),
        guest_config: serde_json::to_vec(&guest).expect("JSON"),
    };
    lab.engine.boot(boot).await.expect("it boots");
    // Killed: the record is removed, the machine and its files are not.
    let killed = left_behind(&lab, new_sandbox()).await;
    lab.records.remove(&killed.id).await.expect("it is recorded");

    let node = lab.open().await;
    assert_eq!(standing(&node, &pausing.id), Some(PersistedState::Running));
    assert!(!lab.engine.is_frozen(&pausing.id));
    assert_eq!(standing(&node, &resuming.id), Some(PersistedState::Paused(PauseMode::Full)));
    assert!(lab.engine.is_frozen(&resuming.id));
    assert_eq!(standing(&node, &booting.id), Some(PersistedState::Paused(PauseMode::Filesystem)));
    assert_eq!(lab.engine.running(), HashSet::from([pausing.id.clone(), resuming.id.clone()]));
    assert_eq!(lab.engine.files(), HashSet::from([&pausing.id, &resuming.id, &booting.id].map(FilesId::from)));
}

#[tokio::test(start_paused = true)]
async fn another_process_with_the_same_number_is_not_adopted() {
    let lab = Lab::new();
    let mut record = left_behind(&lab, new_sandbox()).await;
    if let Some(instance) = record.instance.as_mut() {
        instance.start_time += 1;
    }
    lab.records.put(&record).await.expect("it is recorded");
    let node = lab.open().await;
    assert_eq!(standing(&node, &record.id), Some(PersistedState::Paused(PauseMode::Filesystem)));
    assert!(lab.engine.running().is_empty(), "what was not adopted does not run on unseen");
}
