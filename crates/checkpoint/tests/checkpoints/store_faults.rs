//! Stores that fail, stall, ignore conditions and forget.

use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use sandbar_checkpoint::{
    CheckpointOptions, Condition, ConditionalPuts, ObjectStoreError, Objects, RestoreError, SaveError, Which,
};
use testing::Server;

use crate::support::{assert_same, checkpoints, port, project, run, tree};
use testing::{FaultyStore, ObjectRequest, StoreFault};

const TIMEOUT: Duration = Duration::from_millis(1500);

/// Changes a file, since unchanged files would store no other checkpoint.
async fn change(sandbox: &sdk::Sandbox) {
    run(sandbox, "date +%s%N >small").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_is_retried_without_leftovers() {
    let server = Server::shared(&[]);
    let (old, new) = tokio::join!(server.sandbox(), server.sandbox());
    // More than one part.
    run(&old, "head -c 9000000 /dev/urandom >big; echo hi >small").await;
    let store = FaultyStore::default();
    let checkpoints = checkpoints(Objects::new(Arc::new(store.clone())).within(TIMEOUT));
    let id = project("trouble");
    use ObjectRequest::*;
    use StoreFault::*;
    let scripted = [
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
    for fault in scripted {
        store.expect(fault.0, fault.1);
        change(&old).await;
        let saved = checkpoints.save(&port(&old), &id, &CheckpointOptions::default()).await;
        let saved = saved.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert!(store.is_done(), "{fault:?} was not met");
        let listed = checkpoints.list(&id).await.expect("a list");
        assert_eq!(listed.last().map(|listed| listed.stamp), Some(saved.stamp), "{fault:?}");
        let archives = checkpoints.objects().list(&Path::from("projects")).await.expect("a list").len();
        assert_eq!(archives, 3 * listed.len(), "{fault:?} left something behind: archive, manifest and check each");
    }
    // A failed removal does not fail the save; the next save removes them.
    store.expect(Delete, Fail);
    change(&old).await;
    let saved = checkpoints.save(&port(&old), &id, &CheckpointOptions::default()).await.expect("a snapshot");
    assert_eq!((saved.pruned.checkpoints.len(), store.is_done()), (0, true));
    change(&old).await;
    let saved = checkpoints.save(&port(&old), &id, &CheckpointOptions::default()).await.expect("a snapshot");
    assert_eq!(saved.pruned.checkpoints.len(), 2);

    let wanted = tree(&old).await;
    for fault in [(List, Fail), (Get, Fail), (Get, Stall)] {
        store.expect(fault.0, fault.1);
        let restored = checkpoints.restore(&port(&new), &id, Which::Newest).await.expect("a restore");
        assert!(store.is_done() && restored.skipped_generations.is_empty(), "{fault:?} {restored:?}");
        assert_same(&tree(&new).await, &wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_save_fails_after_three_attempts() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let store = FaultyStore::default();
    let checkpoints = checkpoints(Objects::new(Arc::new(store.clone())).within(TIMEOUT));
    let id = project("giving-up");
    checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("a snapshot");
    let before = checkpoints.list(&id).await.expect("a list");
    run(&sandbox, "echo new >file").await;

    for _ in 0..3 {
        store.expect(ObjectRequest::PutArchive, StoreFault::Fail);
    }
    let failed = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await;
    assert!(matches!(failed, Err(SaveError::Store { source: ObjectStoreError::Failed { .. }, .. })), "{failed:?}");
    assert!(store.is_done());
    assert_eq!(checkpoints.list(&id).await.expect("a list"), before, "earlier snapshots are as they were");

    // A store that cannot be read says nothing about its checkpoints: no older one is restored
    // instead.
    for _ in 0..3 {
        store.expect(ObjectRequest::Get, StoreFault::Stall);
    }
    let failed = checkpoints.restore(&port(&sandbox), &id, Which::Newest).await;
    assert!(matches!(failed, Err(RestoreError::Store { source: ObjectStoreError::TimedOut { .. }, .. })), "{failed:?}");
    assert_eq!(run(&sandbox, "cat file; ls -A | grep -c sandbar || true").await, "new\n0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_conditions_is_detected() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let objects = Objects::new(Arc::new(FaultyStore::lying()));
    let facts = objects.conditional_puts().await.expect("a probe");
    assert_eq!(facts, ConditionalPuts { create: Condition::Ignored, update: Condition::Ignored });
    let checkpoints = checkpoints(objects);
    let id = project("liar");
    // Saves of one process are serialized, so nothing depends on the condition.
    let options = CheckpointOptions::default();
    let writer = sdk::Command::exec("/bin/bash", ["-c", "while date +%s%N >file; do sleep 0.01; done"]);
    let writer = sandbox.commands().start(writer.cwd("/home/user").no_timeout()).await.expect("a writer");
    let port = port(&sandbox);
    let saves = (0..3).map(|_| checkpoints.save(&port, &id, &options));
    let saved = futures::future::join_all(saves).await;
    writer.kill().await.expect("it can be ended");
    let saved: Vec<_> = saved.into_iter().map(|saved| saved.expect("a snapshot")).collect();
    // A save between two writes finds the files unchanged.
    let mut stamps: Vec<_> = saved.iter().filter(|saved| !saved.unchanged).map(|saved| saved.stamp).collect();
    stamps.sort();
    let listed: Vec<_> = checkpoints.list(&id).await.expect("a list").iter().map(|listed| listed.stamp).collect();
    assert_eq!(listed, stamps);
}
