//! A provider that cannot be reached: another takes over, with the files.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_workspace::snapshot::Which;
use sandbar_workspace::{Unavailable, Unsaved};
use testing::Server;

use crate::support::{Recorder, World, assert_same, name, settings, setup, tree};

/// What a create may take on a slow machine, besides the ten seconds for finding out that nobody answers.
const CREATE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_left_with_the_files_of_the_newest_snapshot() {
    let world = World::new();
    let (_, workspace) = world.workspace("fallen").await;
    workspace.write_file("project/work", "done").await.expect("written");
    let wanted = tree(&workspace).await;
    workspace.destroy(Unsaved::Keep).await.expect("saved and ended");

    let hole = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut place = world.place();
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
async fn a_provider_that_is_gone_is_told_and_a_restore_goes_elsewhere() {
    let world = World::new();
    let own = Server::start(&[]);
    let mut place = world.place();
    place.providers[0].1 = own.url();
    place.providers[0].2 = own.key().to_owned();
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let workspace = workspaces.create(&name("stranded"), setup()).await.expect("made").workspace;
    assert_eq!(workspace.provider().as_str(), "one");
    workspace.snapshot().await.expect("saved");
    let wanted = tree(&workspace).await;
    drop(own);

    workspace.exec("true").await.expect_err("nobody answers");
    let error = workspace.enter().await.expect_err("nobody knows whether it lives");
    assert!(matches!(error, Unavailable::Unreachable { .. }), "{error:?}");
    assert_eq!(error.code(), "sandbox_unreachable");
    let restored = workspace.restore(Which::Newest).await.expect("another provider has the files");
    assert_eq!(workspace.provider().as_str(), "two");
    assert!(restored.skipped_generations.is_empty());
    assert_same(&tree(&workspace).await, &wanted);
    let notices = workspace.enter().await.expect("it runs").notices();
    assert!(notices.iter().any(|line| line.contains("could not be reached")), "{notices:?}");
}
