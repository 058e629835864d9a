//! A provider that cannot be reached: another takes over, with the files.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_workspace::events::EventKind;
use sandbar_workspace::{MoveOptions, ProviderName, Unavailable, Unsaved, WorkspaceError};

use crate::support::{KillableServer, Recorder, World, assert_same, name, settings, setup, tree};

/// What a create may take on a slow machine, in addition to the ten seconds until the first
/// provider times out.
const CREATE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_drops_packets_is_replaced() {
    let world = World::new();
    let (_, workspace) = world.workspace("fallen").await;
    workspace.write_file("project/work", "done").await.expect("written");
    let wanted = tree(&workspace).await;
    workspace.destroy(Unsaved::Keep).await.expect("saved and ended");

    let hole = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut place = world.fixture();
    place.providers[0].1 = format!("http://{}", hole.local_addr().expect("it is bound"));
    let workspaces = place.workspaces(settings(), Arc::new(Recorder::default())).await;
    let started = Instant::now();
    let created = workspaces.create(&name("fallen"), setup()).await.expect("the second takes it");
    assert!(started.elapsed() < Duration::from_secs(10) + CREATE, "{:?}", started.elapsed());
    assert_eq!(created.provider.as_str(), "two");
    assert_eq!(created.skipped.len(), 1, "{:?}", created.skipped);
    assert!(created.skipped[0].reason.contains("no answer within"), "{:?}", created.skipped);
    assert_same(&tree(&created.workspace).await, &wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_left_at_an_unreachable_provider_can_be_adopted() {
    let world = World::new();
    let mut own = KillableServer::start();
    let mut place = world.fixture();
    place.providers[0] = own.provider("one");
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let workspace = workspaces.create(&name("stranded"), setup()).await.expect("made").workspace;
    assert_eq!(workspace.provider().as_str(), "one");
    let stamp = workspace.save_checkpoint().await.expect("saved").stamp;
    let wanted = tree(&workspace).await;
    workspace.write_file("project/unsaved", "mine").await.expect("written");
    let old = workspace.sandbox_id().expect("it has one");
    own.kill();

    workspace.exec("true").await.expect_err("no provider answers");
    let error = workspace.enter().await.expect_err("its state is unknown");
    assert!(matches!(error, Unavailable::Unreachable { .. }), "{error:?}");
    assert_eq!(error.code(), "sandbox_unreachable");
    // A move leaves nothing behind unless the caller allows it.
    let two: ProviderName = "two".parse().expect("a name");
    let refused = workspace.move_to(&two, MoveOptions::default()).await.expect_err("a file is nowhere else");
    assert!(matches!(&refused, WorkspaceError::Unsaved { since: Some(since), .. } if *since == stamp), "{refused:?}");
    assert_eq!(workspace.sandbox_id().as_ref(), Some(&old), "it is where it was");
    let moved = workspace.move_to(&two, MoveOptions { leave_unsaved: true }).await.expect("the caller allows it");
    let left = moved.left_behind.expect("it is reported");
    assert_eq!((left.provider.as_str(), left.sandbox, left.since), ("one", old.to_string(), stamp));
    assert_eq!(world.events.count(|event| matches!(event, EventKind::LeftBehind { .. })), 1);
    let view = workspaces.show(&name("stranded")).await.expect("it is there");
    assert_eq!(view.left_behind.len(), 1, "it stays recorded: {view:?}");
    assert_eq!(workspace.provider().as_str(), "two");
    assert!(moved.restored.skipped_generations.is_empty());
    assert_same(&tree(&workspace).await, &wanted);
    let notices = workspace.enter().await.expect("it runs").notices();
    assert!(notices.iter().any(|line| line.contains("could not be reached")), "{notices:?}");

    // When the provider is back, so are the files left there.
    own.come_back();
    workspace.attach(&old).await.expect("it runs");
    assert_eq!(workspace.read_file("project/unsaved").await.expect("it is there"), "mine");
    assert!(workspaces.show(&name("stranded")).await.expect("it is there").left_behind.is_empty());
    workspace.close().await;
}
