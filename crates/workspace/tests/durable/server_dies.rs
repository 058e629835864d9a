//! The server of the sandboxes is killed between any two steps of a handover, and restarts: the
//! files are there, and the workspace continues.

use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use sandbar_workspace::MoveOptions;
use sandbar_workspace::faults;

use crate::dies::POINTS;
use crate::support::{KillableServer, World, assert_same, name, settings, setup, tree};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_dying_at_any_step_loses_nothing() {
    let (world, server) = (World::new(), KillableServer::start());
    let mut place = world.fixture();
    place.providers[0] = server.provider("one");
    let server = Arc::new(Mutex::new(server));
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let workspace = workspaces.create(&name("served"), setup()).await.expect("made").workspace;
    for point in POINTS {
        // The successor may have been created at the other provider.
        let one = "one".parse().expect("a name");
        if workspace.provider() != one {
            workspace.move_to(&one, MoveOptions::default()).await.expect("back again");
        }
        workspace.write_file("project/step", point.name()).await.expect("written");
        let wanted = tree(&workspace).await;
        let hit = Arc::new(Mutex::new(false));
        let hook: faults::Hook = Arc::new({
            let (server, hit) = (Arc::clone(&server), Arc::clone(&hit));
            move |reached| {
                let (server, hit) = (Arc::clone(&server), Arc::clone(&hit));
                async move {
                    if reached == point && !std::mem::replace(&mut *hit.lock(), true) {
                        let killed = tokio::task::spawn_blocking(move || server.lock().kill());
                        killed.await.expect("it is killed");
                    }
                }
                .boxed()
            }
        });
        // It may succeed or fail; either way the workspace continues.
        let rotated = faults::scope(hook, workspace.rotate()).await;
        assert!(*hit.lock(), "{point:?} was never hit: {rotated:?}");
        let revived = Arc::clone(&server);
        let revived = tokio::task::spawn_blocking(move || revived.lock().come_back());
        revived.await.expect("it comes back");
        if let Ok(pass) = workspace.enter().await {
            pass.mark_suspect();
        }
        assert_same(&tree(&workspace).await, &wanted);
        // Sweeps kill leftovers once their provider answers again.
        workspace.save_checkpoint().await.expect("work goes on");
    }
    workspace.close().await;
}
