//! Sandboxes that die between any two steps of a handover: the files are those of the old sandbox, or of the snapshot that
//! was taken of it.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use sandbar_workspace::faults::{self, Point};
use sandbar_workspace::snapshot::Which;
use testing::eventually_async;

use crate::support::{World, assert_same, sandboxes, tree};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);
/// From the first step after which something has happened to the last.
pub(crate) const POINTS: [Point; 9] = [
    Point::HandoverFenced,
    Point::HandoverSaved,
    Point::HandoverRecorded,
    Point::HandoverMade,
    Point::HandoverNoted,
    Point::HandoverRestored,
    Point::HandoverServed,
    Point::HandoverSwapped,
    Point::HandoverTornDown,
];

/// Somebody who waits for a rotation gives up at any step: it is as if the process had died there, and this one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_somebody_gives_up_at_any_step() {
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
        // The keeper ends what is left over.
        eventually_async(format!("one sandbox is left after {point:?}"), PATIENCE, || async {
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
async fn nothing_is_lost_when_sandboxes_die_at_any_step() {
    let world = World::new();
    let (_, workspace) = world.workspace("dying").await;
    for (number, point) in POINTS.into_iter().enumerate() {
        for dies in [Dies::Old, Dies::Successor, Dies::Both] {
            workspace.write_file("project/step", format!("{number} {dies:?}")).await.expect("written");
            // Whoever dies before anything was saved leaves the snapshot that was there.
            workspace.snapshot().await.expect("saved");
            let wanted = tree(&workspace).await;
            let old = workspace.sandbox_id().expect("it has one").to_string();
            let client = world.one.client();
            let hit = Arc::new(Mutex::new(false));
            let hook: faults::Hook = Arc::new({
                let hit = Arc::clone(&hit);
                move |reached| {
                    let (client, old, hit) = (client.clone(), old.clone(), Arc::clone(&hit));
                    async move {
                        if reached != point || std::mem::replace(&mut *hit.lock().expect("no panic"), true) {
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
            // It may succeed or fail; either way the workspace goes on.
            let rotated = faults::scope(hook, workspace.rotate()).await;
            assert!(*hit.lock().expect("no panic"), "{point:?} was never hit");
            let doubt = workspace.enter().await;
            if let Ok(pass) = &doubt {
                pass.doubt();
            }
            drop(doubt);
            let found = tree(&workspace).await;
            assert_same(&found, &wanted);
            let left = world.sandboxes("dying").await;
            assert_eq!(left.len(), 1, "{point:?} {dies:?} {rotated:?}: {left:?}");
        }
    }
    workspace.restore(Which::Newest).await.expect("the newest snapshot is good");
}
