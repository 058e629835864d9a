//! Stores that fail, stall, lie and forget.

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use sandbar_workspace::snapshot::{
    Condition, ConditionalPuts, Objects, RestoreError, SaveError, SnapshotOptions, StoreError, Which,
};
use testing::Server;

use crate::support::{assert_same, project, run, snapshots, tree};
use crate::troubled::{Request, Trouble, Troubled};

const PATIENCE: Duration = Duration::from_millis(1500);

/// Equal files make no other snapshot.
async fn change(sandbox: &sdk::Sandbox) {
    run(sandbox, "date +%s%N >small").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_trouble_is_tried_again_and_nothing_half_is_left() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    // More than one part.
    run(&old, "head -c 9000000 /dev/urandom >big; echo hi >small").await;
    let store = Troubled::default();
    let snapshots = snapshots(Objects::new(Arc::new(store.clone())).within(PATIENCE));
    let id = project("trouble");
    use Request::*;
    use Trouble::*;
    let troubles = [
        (List, Fail),
        (BeginParts, Stall),
        (Part, Fail),
        (Part, Stall),
        (Complete, Fail),
        (Complete, Forget),
        (PutManifest, Fail),
        (PutManifest, Stall),
        (PutManifest, Forget),
    ];
    for trouble in troubles {
        store.expect(trouble.0, trouble.1);
        change(&old).await;
        let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await;
        let saved = saved.unwrap_or_else(|error| panic!("{trouble:?}: {error:?}"));
        assert!(store.is_done(), "{trouble:?} was not met");
        let listed = snapshots.list(&id).await.expect("a list");
        assert_eq!(listed.last().map(|listed| listed.stamp), Some(saved.stamp), "{trouble:?}");
        let archives = snapshots.objects().list(&Path::from("projects")).await.expect("a list").len();
        assert_eq!(archives, 3 * listed.len(), "{trouble:?} left something behind: archive, manifest and check each");
    }
    // Old ones that cannot be removed are no reason to fail; the next save removes them.
    store.expect(Delete, Fail);
    change(&old).await;
    let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    assert_eq!((saved.pruned.snapshots.len(), store.is_done()), (0, true));
    change(&old).await;
    let saved = snapshots.save(&old, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    assert_eq!(saved.pruned.snapshots.len(), 2);

    let wanted = tree(&old).await;
    for trouble in [(List, Fail), (Get, Fail), (Get, Stall)] {
        store.expect(trouble.0, trouble.1);
        let restored = snapshots.restore(&new, &id, Which::Newest).await.expect("a restore");
        assert!(store.is_done() && restored.skipped_generations.is_empty(), "{trouble:?} {restored:?}");
        assert_same(&tree(&new).await, &wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stays_in_trouble_gives_up_after_three_attempts() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let store = Troubled::default();
    let snapshots = snapshots(Objects::new(Arc::new(store.clone())).within(PATIENCE));
    let id = project("giving-up");
    snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await.expect("a snapshot");
    let before = snapshots.list(&id).await.expect("a list");
    run(&sandbox, "echo new >file").await;

    for _ in 0..3 {
        store.expect(Request::PutArchive, Trouble::Fail);
    }
    let failed = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await;
    assert!(matches!(failed, Err(SaveError::Store { source: StoreError::Failed { .. }, .. })), "{failed:?}");
    assert!(store.is_done());
    assert_eq!(snapshots.list(&id).await.expect("a list"), before, "earlier snapshots are as they were");

    // A store that cannot be read says nothing about its snapshots: no older one is taken instead.
    for _ in 0..3 {
        store.expect(Request::Get, Trouble::Stall);
    }
    let failed = snapshots.restore(&sandbox, &id, Which::Newest).await;
    assert!(matches!(failed, Err(RestoreError::Store { source: StoreError::TimedOut { .. }, .. })), "{failed:?}");
    assert_eq!(run(&sandbox, "cat file; ls -A | grep -c sandbar || true").await, "new\n0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lies_about_conditions_is_found_out_and_still_used() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let objects = Objects::new(Arc::new(Troubled::lying()));
    let facts = objects.conditional_puts().await.expect("a probe");
    assert_eq!(facts, ConditionalPuts { create: Condition::Ignored, update: Condition::Ignored });
    let snapshots = snapshots(objects);
    let id = project("liar");
    // Those of one process wait for each other, so that nothing rests on the condition.
    let options = SnapshotOptions::default();
    let writer = sdk::Command::exec("/bin/bash", ["-c", "while date +%s%N >file; do sleep 0.01; done"]);
    let writer = sandbox.commands().start(writer.cwd("/home/user").no_timeout()).await.expect("a writer");
    let saves = (0..3).map(|_| snapshots.save(&sandbox, &id, &options));
    let saved = futures::future::join_all(saves).await;
    writer.kill().await.expect("it can be ended");
    let saved: Vec<_> = saved.into_iter().map(|saved| saved.expect("a snapshot")).collect();
    // A save between two writes of the writer finds what the one before has saved.
    let mut stamps: Vec<_> = saved.iter().filter(|saved| !saved.unchanged).map(|saved| saved.stamp).collect();
    stamps.sort();
    let listed: Vec<_> = snapshots.list(&id).await.expect("a list").iter().map(|listed| listed.stamp).collect();
    assert_eq!(listed, stamps);
}
