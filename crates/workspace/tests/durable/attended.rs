//! Somebody who looks after workspaces that nobody has: what is due is done, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use sandbar_workspace::config::PlanConfig;
use sandbar_workspace::events::EventKind;
use sandbar_workspace::faults::{self, Point};
use sandbar_workspace::setup::Setup;
use sandbar_workspace::snapshot::Which;
use sandbar_workspace::{Attendance, Attended, Settings, Unavailable, Unsaved, Workspaces};

use crate::paused_time::{DAY, HOUR, Kept, MINUTE, kept};
use crate::support::{Recorder, World, assert_same, name, settings, setup, told, tree};

const PATIENCE: Duration = Duration::from_secs(120);

async fn attend(kept: &Kept) -> Attended {
    kept.workspaces.attend(&name("kept")).await.expect("the records can be read")
}

#[tokio::test(start_paused = true)]
async fn what_nobody_has_is_extended_when_it_is_due_and_else_left_alone() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(90 * 24 * 3600), ..PlanConfig::default() };
    let kept = kept(plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
    assert!(matches!(attend(&kept).await.attendance, Attendance::LeftTo { .. }), "it is open");
    kept.workspace.close().await;
    let asked = kept.count("GET /sandboxes/*");
    for _ in 0..54 {
        assert!(matches!(attend(&kept).await.attendance, Attendance::NothingDue));
        tokio::time::sleep(MINUTE).await;
    }
    assert_eq!((kept.count("GET /sandboxes/*"), kept.extensions()), (asked, vec![]), "nobody was asked");
    tokio::time::sleep(2 * MINUTE).await;
    let done = attend(&kept).await;
    assert!(matches!(done.attendance, Attendance::Done), "{done:?}");
    assert_eq!(kept.extensions().len(), 1);
    assert!(matches!(attend(&kept).await.attendance, Attendance::NothingDue));

    // It is nobody's afterwards. One that is paused stays so.
    let workspace = kept.workspaces.open(&name("kept")).await.expect("it was given back");
    workspace.pause().await.expect("paused");
    workspace.close().await;
    tokio::time::sleep(3 * DAY).await;
    assert!(matches!(attend(&kept).await.attendance, Attendance::NothingDue));
    assert_eq!(kept.count("POST /sandboxes/*/connect") + kept.count("POST /v2/sandboxes/*/connect"), 0, "not woken");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stalls_leaves_time_for_a_pause() {
    let plan = PlanConfig { longest_lifetime_seconds: Some(3600), ..PlanConfig::default() };
    let kept = kept(plan, 30 * DAY, jiff::SignedDuration::ZERO).await;
    kept.workspace.close().await;
    tokio::time::sleep(HOUR - 5 * MINUTE).await;
    let stalls: faults::Hook = Arc::new(|point| {
        async move {
            if point == Point::SaveBegun {
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    });
    let began = tokio::time::Instant::now();
    let attended = faults::scope(stalls, attend(&kept)).await;
    assert!(matches!(attended.attendance, Attendance::Failed(_)), "{attended:?}");
    assert_eq!(kept.count("POST /sandboxes/*/pause"), 1, "{:?}", kept.events.events());
    assert!(began.elapsed() < 5 * MINUTE, "before its end");
    assert!(kept.workspaces.show(&name("kept")).await.expect("it is there").paused);
}

/// Comes when it is told to, until something has happened.
async fn attend_until(workspaces: &Workspaces, of: &str, events: &Recorder, is: impl Fn(&EventKind) -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let attended = workspaces.attend(&name(of)).await.expect("the records can be read");
        if events.count(&is) > 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "it never happened: {:?}", events.events());
        tokio::time::sleep(attended.next.max(Duration::from_millis(50))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_rotated_and_at_its_end_stopped_with_everything_in_it() {
    let world = World::new();
    let mut place = world.place();
    place.plan.longest_lifetime_seconds = Some(45);
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let brief = Setup { ttl: Some(Duration::from_secs(75)), ..setup() };
    let workspace = workspaces.create(&name("attended"), brief).await.expect("made").workspace;
    let wanted = tree(&workspace).await;
    // Another process has it, and keeps it.
    let attendant = place.workspaces(settings(), world.events.clone()).await;
    let left = attendant.attend(&name("attended")).await.expect("the records can be read");
    assert!(matches!(left.attendance, Attendance::NothingDue | Attendance::LeftTo { .. }), "{left:?}");
    workspace.close().await;

    let rotated = |event: &EventKind| matches!(event, EventKind::Rotated { .. });
    attend_until(&attendant, "attended", &world.events, rotated).await;
    assert_eq!(world.sandboxes("attended").await.len(), 1, "the old one is gone");
    let stopped = |event: &EventKind| matches!(event, EventKind::Stopped { .. });
    attend_until(&attendant, "attended", &world.events, stopped).await;
    assert!(world.sandboxes("attended").await.is_empty());
    assert_eq!(world.events.count(|event| matches!(event, EventKind::SandboxLost { .. })), 0, "it acted first");

    let workspace = workspaces.open(&name("attended")).await.expect("it is nobody's");
    workspace.restore(Which::Newest).await.expect("brought back");
    assert_same(&tree(&workspace).await, &wanted);
    workspace.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_set_up_made_is_saved_without_being_asked() {
    let world = World::new();
    let early = Settings { first_snapshot_for: Duration::from_secs(600), ..settings() };
    let workspaces = world.place().workspaces(early, world.events.clone()).await;
    let workspace = workspaces.create(&name("early"), setup()).await.expect("made").workspace;
    let wanted = tree(&workspace).await;
    workspace.close().await;
    assert_eq!(workspaces.snapshots_of(workspace.project()).await.expect("a list").len(), 1);
    let workspace = workspaces.open(&name("early")).await.expect("it opens");
    workspace.enter().await.expect("it runs").sandbox().kill().await.expect("killed");
    workspace.exec("true").await.expect_err("it is gone");
    assert_same(&tree(&workspace).await, &wanted);
    workspace.close().await;

    // Without any snapshot there is still a way out.
    let (workspaces, workspace) = world.workspace("late").await;
    workspace.enter().await.expect("it runs").sandbox().kill().await.expect("killed");
    workspace.exec("true").await.expect_err("it is gone");
    let lost = workspace.enter().await.expect_err("nothing brings it back");
    assert!(matches!(lost, Unavailable::Expired { .. }), "{lost:?}");
    assert!(told(&lost).contains("`destroy` it, then `create` it again"), "{}", told(&lost));
    workspace.destroy(Unsaved::Keep).await.expect("there is nothing to be kept");
    workspaces.create(&name("late"), setup()).await.expect("made again").workspace.close().await;
}
