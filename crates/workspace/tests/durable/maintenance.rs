//! Maintenance of workspaces that no process has open: what is due is done, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::Which;
use checkpoint::faults::{self, CheckpointPoint};
use futures::FutureExt;
use sandbar_workspace::config::PlanConfig;
use sandbar_workspace::events::EventKind;
use sandbar_workspace::setup::Setup;
use sandbar_workspace::{Maintained, MaintenanceOutcome, Settings, Unavailable, Unsaved, Workspaces};

use crate::paused_time::{DAY, HOUR, Kept, MINUTE, kept};
use crate::support::{Recorder, World, assert_same, error_chain, name, settings, setup, tree};

const TIMEOUT: Duration = Duration::from_secs(120);

async fn maintain(kept: &Kept) -> Maintained {
    kept.workspaces.maintain(&name("kept")).await.expect("the records can be read")
}

#[tokio::test(start_paused = true)]
async fn due_workspaces_are_extended_and_others_left_alone() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(90 * 24 * 3600), ..PlanConfig::default() };
    let kept = kept(plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
    assert!(matches!(maintain(&kept).await.outcome, MaintenanceOutcome::LeftTo { .. }), "it is open");
    kept.workspace.close().await;
    let sent = kept.count("GET /sandboxes/*");
    for _ in 0..54 {
        assert!(matches!(maintain(&kept).await.outcome, MaintenanceOutcome::NothingDue));
        tokio::time::sleep(MINUTE).await;
    }
    assert_eq!((kept.count("GET /sandboxes/*"), kept.extensions()), (sent, vec![]), "no request was sent");
    tokio::time::sleep(2 * MINUTE).await;
    let done = maintain(&kept).await;
    assert!(matches!(done.outcome, MaintenanceOutcome::Done), "{done:?}");
    assert_eq!(kept.extensions().len(), 1);
    assert!(matches!(maintain(&kept).await.outcome, MaintenanceOutcome::NothingDue));

    // It is released afterwards. A paused one stays paused.
    let workspace = kept.workspaces.open(&name("kept")).await.expect("it was given back");
    workspace.pause().await.expect("paused");
    workspace.close().await;
    tokio::time::sleep(3 * DAY).await;
    assert!(matches!(maintain(&kept).await.outcome, MaintenanceOutcome::NothingDue));
    assert_eq!(kept.count("POST /sandboxes/*/connect") + kept.count("POST /v2/sandboxes/*/connect"), 0, "not resumed");
}

#[tokio::test(start_paused = true)]
async fn a_stalled_store_leaves_time_for_a_pause() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(3600), ..PlanConfig::default() };
    let kept = kept(plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
    kept.workspace.close().await;
    tokio::time::sleep(HOUR - 5 * MINUTE).await;
    let stalls: faults::Hook = Arc::new(|point| {
        async move {
            if point == CheckpointPoint::SaveBegun {
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    });
    let began = tokio::time::Instant::now();
    let maintained = faults::scope(stalls, maintain(&kept)).await;
    assert!(matches!(maintained.outcome, MaintenanceOutcome::Failed(_)), "{maintained:?}");
    assert_eq!(kept.count("POST /sandboxes/*/pause"), 1, "{:?}", kept.events.events());
    assert!(began.elapsed() < 5 * MINUTE, "before its end");
    assert!(kept.workspaces.show(&name("kept")).await.expect("it is there").paused);
}

/// Maintains a workspace when it is due, until an event has occurred.
async fn maintain_until(workspaces: &Workspaces, of: &str, events: &Recorder, is: impl Fn(&EventKind) -> bool) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    loop {
        let maintained = workspaces.maintain(&name(of)).await.expect("the records can be read");
        if events.count(&is) > 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "it never happened: {:?}", events.events());
        tokio::time::sleep(maintained.next.max(Duration::from_millis(50))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maintained_workspace_is_rotated_and_stopped() {
    let world = World::new();
    let mut place = world.fixture();
    place.plan.longest_lifetime_seconds = Some(45);
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let brief = Setup { ttl: Some(Duration::from_secs(75)), ..setup() };
    let workspace = workspaces.create(&name("maintained"), brief).await.expect("made").workspace;
    let wanted = tree(&workspace).await;
    // Another process holds and supervises it.
    let other = place.workspaces(settings(), world.events.clone()).await;
    let left = other.maintain(&name("maintained")).await.expect("the records can be read");
    assert!(matches!(left.outcome, MaintenanceOutcome::NothingDue | MaintenanceOutcome::LeftTo { .. }), "{left:?}");
    workspace.close().await;

    let rotated = |event: &EventKind| matches!(event, EventKind::Rotated { .. });
    maintain_until(&other, "maintained", &world.events, rotated).await;
    assert_eq!(world.sandboxes("maintained").await.len(), 1, "the old one is gone");
    let stopped = |event: &EventKind| matches!(event, EventKind::Stopped { .. });
    maintain_until(&other, "maintained", &world.events, stopped).await;
    assert!(world.sandboxes("maintained").await.is_empty());
    assert_eq!(world.events.count(|event| matches!(event, EventKind::SandboxLost { .. })), 0, "it acted first");

    let workspace = workspaces.open(&name("maintained")).await.expect("it is released");
    workspace.restore(Which::Newest).await.expect("brought back");
    assert_same(&tree(&workspace).await, &wanted);
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_checkpoint_is_saved_unasked() {
    let world = World::new();
    let early = Settings { first_checkpoint_for: Duration::from_secs(600), ..settings() };
    let workspaces = world.fixture().workspaces(early, world.events.clone()).await;
    let workspace = workspaces.create(&name("early"), setup()).await.expect("made").workspace;
    let wanted = tree(&workspace).await;
    workspace.close().await;
    assert_eq!(workspaces.checkpoints_of(workspace.project()).await.expect("a list").len(), 1);
    let workspace = workspaces.open(&name("early")).await.expect("it opens");
    workspace.enter().await.expect("it runs").sandbox().kill().await.expect("killed");
    workspace.exec("true").await.expect_err("it is gone");
    assert_same(&tree(&workspace).await, &wanted);
    workspace.close().await;

    // Without any checkpoint, the error names the way out.
    let (workspaces, workspace) = world.workspace("late").await;
    workspace.enter().await.expect("it runs").sandbox().kill().await.expect("killed");
    workspace.exec("true").await.expect_err("it is gone");
    let lost = workspace.enter().await.expect_err("nothing brings it back");
    assert!(matches!(lost, Unavailable::Expired { .. }), "{lost:?}");
    assert!(error_chain(&lost).contains("`destroy` it, then `create` it again"), "{}", error_chain(&lost));
    workspace.destroy(Unsaved::Keep).await.expect("there is nothing to be kept");
    workspaces.create(&name("late"), setup()).await.expect("made again").workspace.close().await;
}
