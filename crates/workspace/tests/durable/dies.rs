//! Sandboxes die between any two steps of a handover: the files are those of the old sandbox, or of
//! the checkpoint taken of it.

use std::sync::Arc;

use checkpoint::Which;
use futures::FutureExt;
use parking_lot::Mutex;
use sandbar_workspace::faults::{self, WorkspacePoint};
use testing::eventually_async;

use crate::support::{World, assert_same, sandboxes, tree};

const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(90);
/// From the first step with an effect to the last.
pub(crate) const POINTS: [WorkspacePoint; 9] = [
    WorkspacePoint::HandoverGateClosed,
    WorkspacePoint::HandoverSaved,
    WorkspacePoint::HandoverRecorded,
    WorkspacePoint::HandoverMade,
    WorkspacePoint::HandoverNoted,
    WorkspacePoint::HandoverRestored,
    WorkspacePoint::HandoverServed,
    WorkspacePoint::HandoverSwapped,
    WorkspacePoint::HandoverTornDown,
];

/// The caller of a rotation drops its future at any step: as if the process had died there, but
/// this one continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_dropped_at_any_step_loses_nothing() {
    let world = World::new();
    let (_, workspace) = world.workspace("given-up").await;
    for point in POINTS {
        workspace.write_file("project/step", point.name()).await.expect("written");
        let wanted = tree(&workspace).await;
        let (reached, came) = tokio::sync::mpsc::channel(1);
        let hook: faults::Hook = Arc::new(move |here| {
            let reached = reached.clone();
            async move {
                if here == point {
                    let _ = reached.send(()).await;
                    std::future::pending::<()>().await;
                }
            }
            .boxed()
        });
        let mut came = came;
        tokio::select! {
            done = faults::scope(hook, workspace.rotate()) => panic!("{point:?} was never hit: {done:?}"),
            () = came.recv().map(drop) => {}
        }
        assert_same(&tree(&workspace).await, &wanted);
        // The supervisor kills the leftovers.
        eventually_async(format!("one sandbox is left after {point:?}"), TIMEOUT, || async {
            (world.sandboxes("given-up").await.len() == 1).then_some(())
        })
        .await;
    }
}

/// Which sandbox dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dies {
    Old,
    Successor,
    Both,
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_dying_at_any_step_lose_nothing() {
    let world = World::new();
    let (_, workspace) = world.workspace("dying").await;
    for (number, point) in POINTS.into_iter().enumerate() {
        for dies in [Dies::Old, Dies::Successor, Dies::Both] {
            workspace.write_file("project/step", format!("{number} {dies:?}")).await.expect("written");
            // A death before the rotation's checkpoint leaves this one.
            workspace.save_checkpoint().await.expect("saved");
            let wanted = tree(&workspace).await;
            let old = workspace.sandbox_id().expect("it has one").to_string();
            let client = world.one.client();
            let hit = Arc::new(Mutex::new(false));
            let hook: faults::Hook = Arc::new({
                let hit = Arc::clone(&hit);
                move |reached| {
                    let (client, old, hit) = (client.clone(), old.clone(), Arc::clone(&hit));
                    async move {
                        if reached != point || std::mem::replace(&mut *hit.lock(), true) {
                            return;
                        }
                        for id in sandboxes(&client, "dying").await {
                            let is_old = id == old;
                            if dies == Dies::Both || is_old == (dies == Dies::Old) {
                                client.kill(&id.parse().expect("an id")).await.expect("killed");
                            }
                        }
                    }
                    .boxed()
                }
            });
            // It may succeed or fail; either way the workspace continues.
            let rotated = faults::scope(hook, workspace.rotate()).await;
            assert!(*hit.lock(), "{point:?} was never hit");
            let mark_suspect = workspace.enter().await;
            if let Ok(pass) = &mark_suspect {
                pass.mark_suspect();
            }
            drop(mark_suspect);
            let found = tree(&workspace).await;
            assert_same(&found, &wanted);
            let left = world.sandboxes("dying").await;
            assert_eq!(left.len(), 1, "{point:?} {dies:?} {rotated:?}: {left:?}");
        }
    }
    workspace.restore(Which::Newest).await.expect("the newest snapshot is good");
}
