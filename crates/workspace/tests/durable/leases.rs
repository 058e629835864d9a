//! Two processes on one workspace: the second waits, or is refused with who has it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_workspace::{OpenError, Settings, Unavailable};

use crate::support::{Recorder, World, name, setup};

/// A lease that is renewed also by a process which a busy machine lets wait.
fn settings() -> Settings {
    Settings { lease: Duration::from_secs(5), ..crate::support::settings() }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_in_one_process_have_the_same_workspace() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("shared").await;
    workspace.close().await;
    let of = name("shared");
    let opened = futures::future::join_all((0..4).map(|_| workspaces.open(&of))).await;
    for workspace in &opened {
        workspace.as_ref().expect("it opens").exec("true").await.expect("it can work");
    }
    // It is one: closing it closes all.
    opened[0].as_ref().expect("it opens").close().await;
    assert!(matches!(opened[3].as_ref().expect("it opens").enter().await, Err(Unavailable::Closed(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_waits_or_is_refused_and_a_lost_lease_ends_all_work() {
    let world = World::new();
    let workspaces = world.place().workspaces(settings(), world.events.clone()).await;
    let first = workspaces.create(&name("leased"), setup()).await.expect("made").workspace;
    // Another process is another set of workspaces on the same records.
    let hasty = Settings { lease_wait: Duration::from_millis(300), ..settings() };
    let second = world.place().workspaces(hasty, Arc::new(Recorder::default())).await;
    match second.open(&name("leased")).await {
        Err(OpenError::Held { owner, .. }) => assert!(owner.contains(&std::process::id().to_string()), "{owner}"),
        other => panic!("it is in use: {other:?}"),
    }
    // Longer than a lease lasts: it was renewed.
    tokio::time::sleep(settings().lease * 2).await;
    assert!(matches!(second.open(&name("leased")).await, Err(OpenError::Held { .. })));

    let patient = world.place().workspaces(settings(), Arc::new(Recorder::default())).await;
    let waiting = tokio::spawn({
        let patient = patient.clone();
        async move { patient.open(&name("leased")).await }
    });
    first.close().await;
    let started = Instant::now();
    let third = waiting.await.expect("it ends").expect("it was given back");
    assert!(started.elapsed() < settings().lease_wait);
    third.exec("true").await.expect("it can work");
    assert!(matches!(first.enter().await, Err(Unavailable::Closed(_))));

    // Nobody renews a lease that was dropped; when somebody else has it, the one before is out for good.
    drop(third);
    let fourth = patient.open(&name("leased")).await.expect("it ran out");
    fourth.exec("true").await.expect("it can work");
    fourth.close().await;
}
