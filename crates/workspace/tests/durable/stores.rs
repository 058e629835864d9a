//! A store that fails, stalls or forgets under everything that a workspace does: the work goes on, the sandbox is never given
//! up before its files are safe, and once the store is well everything is.

use std::sync::Arc;
use std::time::Duration;

use sandbar_workspace::events::EventKind;
use sandbar_workspace::phase::Phase;
use sandbar_workspace::snapshot::{self, Objects, Snapshots, Which};
use sandbar_workspace::{MoveOptions, Unavailable, Unsaved, Workspace, WorkspaceError};

use crate::support::{Recorder, World, assert_same, name, setup, tree};
use crate::troubled::{Request, Trouble, Troubled};

/// How long a store may stall.
const PATIENCE: Duration = Duration::from_millis(1500);
/// As often as something is tried.
const ATTEMPTS: usize = 3;

struct Stored {
    world: World,
    store: Troubled,
    events: Arc<Recorder>,
    workspace: Workspace,
}

impl Stored {
    async fn new(of: &str, store: Troubled) -> Self {
        let (world, events) = (World::new(), Arc::new(Recorder::default()));
        let settings = snapshot::Settings { backoff: Duration::from_millis(10), ..snapshot::Settings::default() };
        let snapshots = Snapshots::new(Objects::new(Arc::new(store.clone())).within(PATIENCE)).with(settings);
        let workspaces = world.place().workspaces_with(snapshots, events.clone());
        let workspace = workspaces.create(&name(of), setup()).await.expect("made").workspace;
        Self { world, store, events, workspace }
    }

    /// Every attempt at something meets this trouble.
    fn expect_all(&self, request: Request, trouble: Trouble) {
        for _ in 0..ATTEMPTS {
            self.store.expect(request, trouble);
        }
    }

    fn failed_snapshots(&self) -> usize {
        self.events.count(|event| matches!(event, EventKind::SnapshotFailed { .. }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_and_no_sandbox_is_given_up_while_nothing_can_be_stored() {
    let stored = Stored::new("unstored", Troubled::default()).await;
    let Stored { world, store, events, workspace } = &stored;
    let sandbox = workspace.sandbox_id();

    // A phase is committed, also when it cannot be saved; the next one can.
    stored.expect_all(Request::PutArchive, Trouble::Fail);
    let phase = workspace.commit_phase("unsaved").await.expect("committed");
    assert!(matches!(phase.phase, Phase::Committed(_)) && phase.snapshot.is_none(), "{phase:?}");
    assert!(store.is_done() && stored.failed_snapshots() == 1);
    assert_eq!(workspace.snapshots().await.expect("a list").len(), 0);

    // Neither a rotation nor the end takes the sandbox when its files are nowhere else.
    stored.expect_all(Request::PutManifest, Trouble::Fail);
    workspace.rotate().await.expect_err("nothing can be stored");
    stored.expect_all(Request::PutArchive, Trouble::Stall);
    workspace
        .move_to(&"two".parse().expect("a name"), MoveOptions::default())
        .await
        .expect_err("nothing can be stored");
    stored.expect_all(Request::PutArchive, Trouble::Fail);
    let kept = workspace.destroy(Unsaved::Keep).await.expect_err("nothing can be stored");
    assert!(matches!(kept, WorkspaceError::Save(_)), "{kept:?}");
    assert!(store.is_done());
    let wanted = tree(workspace).await;
    assert_eq!((workspace.sandbox_id(), world.sandboxes("unstored").await.len()), (sandbox.clone(), 1));
    assert_eq!(events.count(|event| matches!(event, EventKind::HandoverFailed { .. })), 2);

    // A pause keeps the files by itself.
    stored.expect_all(Request::PutArchive, Trouble::Fail);
    workspace.pause().await.expect("paused");
    assert!(store.is_done());
    assert_same(&tree(workspace).await, &wanted);
    assert_eq!(workspace.sandbox_id(), sandbox);

    // Trouble that passes is not even told.
    let before = stored.failed_snapshots();
    for trouble in [Trouble::Fail, Trouble::Stall, Trouble::Forget] {
        store.expect(Request::PutManifest, trouble);
        // Equal files would make no other snapshot.
        workspace.write_file("project/changed", format!("{trouble:?}")).await.expect("written");
        let wanted = tree(workspace).await;
        workspace.rotate().await.expect("rotated");
        assert!(store.is_done(), "{trouble:?} was not met");
        assert_same(&tree(workspace).await, &wanted);
    }
    assert_eq!(stored.failed_snapshots(), before);
    workspace.destroy(Unsaved::Keep).await.expect("saved and ended");
    assert!(world.sandboxes("unstored").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_read_costs_time_and_no_files() {
    let stored = Stored::new("unread", Troubled::default()).await;
    let Stored { world, store, workspace, .. } = &stored;
    workspace.snapshot().await.expect("saved");
    workspace.write_file("project/newer", "than the snapshot").await.expect("written");
    let wanted = tree(workspace).await;
    let sandbox = workspace.sandbox_id();

    // The successor never gets its files: the old sandbox is still in use, and the successor gone.
    stored.expect_all(Request::Get, Trouble::Fail);
    workspace.rotate().await.expect_err("the successor cannot have its files");
    assert!(store.is_done());
    assert_eq!((workspace.sandbox_id(), world.sandboxes("unread").await.len()), (sandbox, 1));
    assert_same(&tree(workspace).await, &wanted);

    // Set back in place: refused while the store is in trouble, and nothing is half done.
    stored.expect_all(Request::List, Trouble::Fail);
    workspace.restore(Which::Newest).await.expect_err("the store cannot be asked");
    assert_same(&tree(workspace).await, &wanted);

    // The sandbox is lost meanwhile. Whoever wants to work is told, and has everything once the store is well.
    workspace.snapshot().await.expect("saved");
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    pass.doubt();
    drop(pass);
    stored.expect_all(Request::Get, Trouble::Stall);
    let unavailable = workspace.enter().await.expect_err("nothing can be read");
    assert!(matches!(unavailable, Unavailable::Expired { .. }), "{unavailable:?}");
    assert!(store.is_done());
    assert_same(&tree(workspace).await, &wanted);
    assert_eq!(world.sandboxes("unread").await.len(), 1, "no successor is left over");
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lies_about_conditions_keeps_everything_all_the_same() {
    let stored = Stored::new("lied-to", Troubled::lying()).await;
    let workspace = &stored.workspace;
    let wanted = tree(workspace).await;
    // The lease lets one process save at a time, so that nothing rests on a condition.
    let (one, two) = tokio::join!(workspace.snapshot(), workspace.snapshot());
    let (one, two) = (one.expect("saved"), two.expect("saved"));
    assert_eq!((one.stamp, one.unchanged != two.unchanged), (two.stamp, true), "the second finds what the first saved");
    workspace.rotate().await.expect("rotated");
    assert_same(&tree(workspace).await, &wanted);
    assert_eq!(workspace.snapshots().await.expect("a list").len(), 1);
    workspace.close().await;
}
