//! A store that fails, stalls or forgets during every operation of a workspace: work continues, the
//! sandbox is never killed before its files are saved, and all recovers with the store.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::{Checkpoints, Objects, Which};
use sandbar_workspace::events::EventKind;
use sandbar_workspace::phase::Phase;
use sandbar_workspace::{MoveOptions, Unavailable, Unsaved, Workspace, WorkspaceError};

use crate::support::{Recorder, World, assert_same, name, setup, tree};
use testing::{FaultyStore, ObjectRequest, StoreFault};

/// How long a store may stall.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// The attempts of a save or restore.
const ATTEMPTS: usize = 3;

struct Stored {
    world: World,
    store: FaultyStore,
    events: Arc<Recorder>,
    workspace: Workspace,
}

impl Stored {
    async fn new(of: &str, store: FaultyStore) -> Self {
        let (world, events) = (World::new(), Arc::new(Recorder::default()));
        let settings = checkpoint::CheckpointSettings {
            backoff: Duration::from_millis(10),
            ..checkpoint::CheckpointSettings::default()
        };
        let checkpoints = Checkpoints::new(Objects::new(Arc::new(store.clone())).within(TIMEOUT)).with(settings);
        let workspaces = world.fixture().workspaces_with(checkpoints, events.clone());
        let workspace = workspaces.create(&name(of), setup()).await.expect("made").workspace;
        Self { world, store, events, workspace }
    }

    /// Makes every attempt fail in this way.
    fn expect_all(&self, request: ObjectRequest, fault: StoreFault) {
        for _ in 0..ATTEMPTS {
            self.store.expect(request, fault);
        }
    }

    fn failed_checkpoints(&self) -> usize {
        self.events.count(|event| matches!(event, EventKind::CheckpointFailed { .. }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_store_never_costs_the_sandbox() {
    let stored = Stored::new("unstored", FaultyStore::default()).await;
    let Stored { world, store, events, workspace } = &stored;
    let sandbox = workspace.sandbox_id();

    // A phase is committed even if its checkpoint fails.
    stored.expect_all(ObjectRequest::PutArchive, StoreFault::Fail);
    let phase = workspace.commit_phase("unsaved").await.expect("committed");
    assert!(matches!(phase.phase, Phase::Committed(_)) && phase.checkpoint.is_none(), "{phase:?}");
    assert!(store.is_done() && stored.failed_checkpoints() == 1);
    assert_eq!(workspace.checkpoints().await.expect("a list").len(), 0);

    // Neither a rotation nor destruction kills the sandbox while its files exist nowhere else.
    stored.expect_all(ObjectRequest::PutManifest, StoreFault::Fail);
    workspace.rotate().await.expect_err("nothing can be stored");
    stored.expect_all(ObjectRequest::PutArchive, StoreFault::Stall);
    workspace
        .move_to(&"two".parse().expect("a name"), MoveOptions::default())
        .await
        .expect_err("nothing can be stored");
    stored.expect_all(ObjectRequest::PutArchive, StoreFault::Fail);
    let kept = workspace.destroy(Unsaved::Keep).await.expect_err("nothing can be stored");
    assert!(matches!(kept, WorkspaceError::Save(_)), "{kept:?}");
    assert!(store.is_done());
    let wanted = tree(workspace).await;
    assert_eq!((workspace.sandbox_id(), world.sandboxes("unstored").await.len()), (sandbox.clone(), 1));
    assert_eq!(events.count(|event| matches!(event, EventKind::HandoverFailed { .. })), 2);

    // A pause keeps the files by itself.
    stored.expect_all(ObjectRequest::PutArchive, StoreFault::Fail);
    workspace.pause().await.expect("paused");
    assert!(store.is_done());
    assert_same(&tree(workspace).await, &wanted);
    assert_eq!(workspace.sandbox_id(), sandbox);

    // A failure that a retry resolves is not reported.
    let before = stored.failed_checkpoints();
    for fault in [StoreFault::Fail, StoreFault::Stall, StoreFault::Forget] {
        store.expect(ObjectRequest::PutManifest, fault);
        // Unchanged files would store no other checkpoint.
        workspace.write_file("project/changed", format!("{fault:?}")).await.expect("written");
        let wanted = tree(workspace).await;
        workspace.rotate().await.expect("rotated");
        assert!(store.is_done(), "{fault:?} was not met");
        assert_same(&tree(workspace).await, &wanted);
    }
    assert_eq!(stored.failed_checkpoints(), before);
    workspace.destroy(Unsaved::Keep).await.expect("saved and ended");
    assert!(world.sandboxes("unstored").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_store_loses_no_files() {
    let stored = Stored::new("unread", FaultyStore::default()).await;
    let Stored { world, store, workspace, .. } = &stored;
    workspace.save_checkpoint().await.expect("saved");
    workspace.write_file("project/newer", "than the snapshot").await.expect("written");
    let wanted = tree(workspace).await;
    let sandbox = workspace.sandbox_id();

    // The successor never gets its files: it is killed, and the old sandbox is still in use.
    stored.expect_all(ObjectRequest::Get, StoreFault::Fail);
    workspace.rotate().await.expect_err("the successor cannot have its files");
    assert!(store.is_done());
    assert_eq!((workspace.sandbox_id(), world.sandboxes("unread").await.len()), (sandbox, 1));
    assert_same(&tree(workspace).await, &wanted);

    // A restore in place fails without changing anything.
    stored.expect_all(ObjectRequest::List, StoreFault::Fail);
    workspace.restore(Which::Newest).await.expect_err("the store cannot be asked");
    assert_same(&tree(workspace).await, &wanted);

    // The sandbox is lost meanwhile. Callers get an error, and everything once the store recovers.
    workspace.save_checkpoint().await.expect("saved");
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    pass.mark_suspect();
    drop(pass);
    stored.expect_all(ObjectRequest::Get, StoreFault::Stall);
    let unavailable = workspace.enter().await.expect_err("nothing can be read");
    assert!(matches!(unavailable, Unavailable::Expired { .. }), "{unavailable:?}");
    assert!(store.is_done());
    assert_same(&tree(workspace).await, &wanted);
    assert_eq!(world.sandboxes("unread").await.len(), 1, "no successor is left over");
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_conditions_loses_nothing() {
    let stored = Stored::new("lied-to", FaultyStore::lying()).await;
    let workspace = &stored.workspace;
    let wanted = tree(workspace).await;
    // The lease lets one process save at a time, so nothing depends on a condition.
    let (one, two) = tokio::join!(workspace.save_checkpoint(), workspace.save_checkpoint());
    let (one, two) = (one.expect("saved"), two.expect("saved"));
    assert_eq!((one.stamp, one.unchanged != two.unchanged), (two.stamp, true), "the second finds what the first saved");
    workspace.rotate().await.expect("rotated");
    assert_same(&tree(workspace).await, &wanted);
    assert_eq!(workspace.checkpoints().await.expect("a list").len(), 1);
    workspace.close().await;
}
