//! Two processes on one workspace: the second waits, or fails with the name of the owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use sandbar_workspace::process;
use sandbar_workspace::records::{DatabaseRecords, Lease, Leases as _};
use sandbar_workspace::{OpenError, Settings, Unavailable};
use testing::eventually_async;

use crate::support::{Recorder, World, name, setup};

/// A lease that even a process delayed by a busy machine renews in time.
fn settings() -> Settings {
    Settings { lease: Duration::from_secs(5), ..crate::support::settings() }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_opens_share_one_workspace() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("shared").await;
    workspace.close().await;
    let of = name("shared");
    let opened = futures::future::join_all((0..4).map(|_| workspaces.open(&of))).await;
    for workspace in &opened {
        workspace.as_ref().expect("it opens").exec("true").await.expect("it can work");
    }
    // All handles are one workspace: closing it closes all.
    opened[0].as_ref().expect("it opens").close().await;
    assert!(matches!(opened[3].as_ref().expect("it opens").enter().await, Err(Unavailable::Closed(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_waits_or_fails() {
    let world = World::new();
    let workspaces = world.fixture().workspaces(settings(), world.events.clone()).await;
    let first = workspaces.create(&name("leased"), setup()).await.expect("made").workspace;
    // A second set of workspaces on the same records acts as another process.
    let hasty = Settings { lease_timeout: Duration::from_millis(300), ..settings() };
    let second = world.fixture().workspaces(hasty, Arc::new(Recorder::default())).await;
    match second.open(&name("leased")).await {
        Err(OpenError::Held { owner, .. }) => assert!(owner.contains(&std::process::id().to_string()), "{owner}"),
        other => panic!("it is in use: {other:?}"),
    }
    // Longer than a lease lasts: it was renewed.
    tokio::time::sleep(settings().lease * 2).await;
    assert!(matches!(second.open(&name("leased")).await, Err(OpenError::Held { .. })));

    let waiter = world.fixture().workspaces(settings(), Arc::new(Recorder::default())).await;
    let waiting = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.open(&name("leased")).await }
    });
    first.close().await;
    let started = Instant::now();
    let third = waiting.await.expect("it ends").expect("it was given back");
    assert!(started.elapsed() < settings().lease_timeout);
    third.exec("true").await.expect("it can work");
    assert!(matches!(first.enter().await, Err(Unavailable::Closed(_))));

    // A dropped lease is not renewed.
    drop(third);
    let fourth = waiter.open(&name("leased")).await.expect("it expired");
    fourth.exec("true").await.expect("it can work");
    fourth.close().await;
}

/// The records, and a lease that another process holds by a clock that is ahead.
async fn taken_ahead(world: &World, of: &str, owner: &str, ahead: SignedDuration) -> (DatabaseRecords, Lease) {
    let url = format!("sqlite://{}/records.sqlite", world.directory.path().display());
    let records = DatabaseRecords::open(&url.into()).await.expect("the records open");
    let now = jiff::Timestamp::now() + ahead;
    let lease =
        records.take_lease(&name(of), owner, now, settings().lease).await.expect("it has run out by that clock");
    (records, lease)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_is_retaken_with_a_notice() {
    let world = World::new();
    let short = Settings { lease_timeout: Duration::from_millis(300), ..settings() };
    let workspaces = world.fixture().workspaces(short, world.events.clone()).await;
    let workspace = workspaces.create(&name("held-up"), setup()).await.expect("made").workspace;
    let epoch = workspace.enter().await.expect("it runs").epoch();
    // As if this process had been suspended for a while.
    let (records, other) = taken_ahead(&world, "held-up", &process::identify(), SignedDuration::from_secs(10)).await;
    let lost =
        eventually_async("the lease is lost", Duration::from_secs(60), || async { workspace.enter().await.err() });
    assert!(matches!(lost.await, Unavailable::LeaseLost(_)));
    let lost = workspace.exec("true").await.expect_err("the other process has it").to_string();
    assert!(lost.contains("which still has it"), "{lost}");
    records.release_lease(&other).await.expect("given back");

    let pass = workspace.enter().await.expect("it is taken again");
    assert!(pass.epoch() > epoch);
    let notices = pass.notices();
    assert!(notices.iter().any(|notice| notice.contains("Another process worked in this workspace")), "{notices:?}");
    drop(pass);
    workspace.write_file("after", "written").await.expect("written");
    workspace.pause().await.expect("the record can be changed");
    workspace.exec("cat after").await.expect("it wakes");
    assert!(records.renew_lease(&other, jiff::Timestamp::now(), settings().lease).await.is_err());
    // Another `open` in this process returns the same workspace.
    assert_eq!(workspaces.open(&name("held-up")).await.expect("it opens").sandbox_id(), workspace.sandbox_id());
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_written_under_a_clock_ahead_is_void() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("ahead").await;
    workspace.close().await;
    let hour = SignedDuration::from_hours(1);
    let (_, _lease) = taken_ahead(&world, "ahead", "process 7 on elsewhere", hour).await;
    let started = Instant::now();
    workspaces.open(&name("ahead")).await.expect("it is void at once").close().await;
    assert!(started.elapsed() < settings().lease, "{:?}", started.elapsed());
    // A running process may have its clock set, and renews its lease.
    let (records, lease) = taken_ahead(&world, "ahead", &process::identify(), hour).await;
    let hasty = Settings { lease_timeout: Duration::from_millis(300), ..settings() };
    let hasty = world.fixture().workspaces(hasty, Arc::new(Recorder::default())).await;
    assert!(matches!(hasty.open(&name("ahead")).await, Err(OpenError::Held { .. })));
    records.renew_lease(&lease, jiff::Timestamp::now(), Duration::from_secs(1)).await.expect("it is still its own");
    let (_, _stopped) = (workspaces.open(&name("ahead")).await.expect("it ran out").close().await, ());
    // A process that does not renew it loses it.
    let (_, _lease) = taken_ahead(&world, "ahead", &process::identify(), hour).await;
    workspaces.open(&name("ahead")).await.expect("it was not renewed").close().await;
}
