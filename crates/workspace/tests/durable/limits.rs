//! Sandboxes whose lifetime a plan limits, in real time.

use std::time::Duration;

use checkpoint::Which;
use sandbar_workspace::events::EventKind;
use sandbar_workspace::setup::Setup;
use sandbar_workspace::{Settings, Unavailable};
use testing::eventually_async;

use crate::support::{World, assert_same, name, settings, setup, tree};

const TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_rotated_before_the_plans_end() {
    let world = World::new();
    let mut place = world.fixture();
    place.plan.longest_lifetime_seconds = Some(45);
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let workspace = workspaces.create(&name("short"), setup()).await.expect("made").workspace;
    let (old, wanted) = (workspace.sandbox_id(), tree(&workspace).await);
    let rotated = |event: &EventKind| matches!(event, EventKind::Rotated { .. });
    eventually_async("it is rotated", TIMEOUT, || async { (world.events.count(rotated) > 0).then_some(()) }).await;
    assert_ne!(workspace.sandbox_id(), old);
    assert_same(&tree(&workspace).await, &wanted);
    assert_eq!(world.events.count(|event| matches!(event, EventKind::SandboxLost { .. })), 0, "it acted first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_for_one_sandbox_kills_the_old_one_first() {
    let world = World::new();
    let mut place = world.fixture();
    place.providers.truncate(1);
    place.plan.concurrent_sandboxes = Some(1);
    let workspaces = place.workspaces(settings(), world.events.clone()).await;
    let workspace = workspaces.create(&name("alone"), setup()).await.expect("made").workspace;
    let (old, wanted) = (workspace.sandbox_id(), tree(&workspace).await);
    workspace.rotate().await.expect("in the place of the old one");
    assert_ne!(workspace.sandbox_id(), old);
    assert_same(&tree(&workspace).await, &wanted);
    assert_eq!(world.sandboxes("alone").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_sandbox_is_extended() {
    let world = World::new();
    let settings = Settings {
        resumed: Duration::from_secs(30),
        extend_under: Duration::from_secs(60),
        inspect_interval: Duration::from_secs(1),
        ..settings()
    };
    let workspaces = world.fixture().workspaces(settings, world.events.clone()).await;
    let workspace = workspaces.create(&name("extended"), setup()).await.expect("made").workspace;
    workspace.pause().await.expect("paused");
    workspace.resume().await.expect("resumed");
    let extended = |event: &EventKind| matches!(event, EventKind::Extended { .. });
    eventually_async("it is extended", TIMEOUT, || async { (world.events.count(extended) > 0).then_some(()) }).await;
    let ends = workspaces.show(&name("extended")).await.expect("it is there").sandbox_ends_at.expect("it runs");
    let left = ends.duration_since(jiff::Timestamp::now()).as_secs();
    assert!(left > 23 * 3600, "as long as the plan has it, which is a day: {left} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_workspace_stops_and_can_be_restored() {
    let world = World::new();
    let workspaces = world.workspaces().await;
    let brief = Setup { ttl: Some(Duration::from_secs(30)), ..setup() };
    let workspace = workspaces.create(&name("brief"), brief).await.expect("made").workspace;
    let wanted = tree(&workspace).await;
    let stopped = |event: &EventKind| matches!(event, EventKind::Stopped { .. });
    eventually_async("it is stopped", TIMEOUT, || async { (world.events.count(stopped) > 0).then_some(()) }).await;
    assert!(world.sandboxes("brief").await.is_empty());
    assert!(matches!(workspace.enter().await, Err(Unavailable::Stopped(_))));
    workspace.restore(Which::Newest).await.expect("brought back");
    assert_same(&tree(&workspace).await, &wanted);
}
