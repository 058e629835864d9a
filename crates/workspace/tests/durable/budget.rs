//! Budgets: thresholds are reported, and a used-up budget saves and pauses the workspace.

use std::time::Duration;

use sandbar_workspace::events::EventKind;
use sandbar_workspace::{OpenError, Settings, SetupError, Unavailable, WorkspaceError};
use testing::eventually_async;

use crate::support::{World, name, settings, setup};

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_budget_saves_and_pauses() {
    let world = World::new();
    let mut place = world.fixture();
    // A dollar per second, and five dollars.
    place.price.usd_per_hour = Some(3600.0);
    place.budget = Some(5.0);
    let settings = Settings { budget_check_interval: Duration::from_millis(200), ..settings() };
    let workspaces = place.workspaces(settings, world.events.clone()).await;
    let workspace = workspaces.create(&name("broke"), setup()).await.expect("made").workspace;
    let paused = |event: &EventKind| matches!(event, EventKind::Paused { .. });
    eventually_async("it is paused", Duration::from_secs(60), || async {
        (world.events.count(paused) == 1).then_some(())
    })
    .await;
    let error_chain = world.events.events().into_iter().filter_map(|event| match event {
        EventKind::LimitWarning(warning) => Some(warning.percent),
        _ => None,
    });
    assert_eq!(error_chain.collect::<Vec<_>>(), [50, 80, 95]);
    assert_eq!(world.events.count(|event| matches!(event, EventKind::LimitReached { .. })), 1);
    assert_eq!(workspace.checkpoints().await.expect("a list").len(), 1);
    assert!(workspaces.show(&name("broke")).await.expect("it is there").paused);
    assert!(matches!(workspace.enter().await, Err(Unavailable::OverBudget { .. })));

    // No new workspace is created, and the attempt leaves nothing.
    let refused = workspaces.create(&name("poor"), setup()).await.expect_err("there is no money");
    assert!(matches!(refused, SetupError::OverBudget { .. }), "{refused:?}");
    assert!(matches!(workspaces.show(&name("poor")).await, Err(OpenError::NotFound(_))));
}

/// A command is over before any supervisor checks budgets.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_command_is_rejected_over_budget() {
    let world = World::new();
    let mut place = world.fixture();
    place.price.usd_per_hour = Some(3600.0);
    place.budget = Some(5.0);
    let settings = Settings { budget_check_interval: Duration::from_secs(3600), ..settings() };
    let workspaces = place.workspaces(settings, world.events.clone()).await;
    let workspace = workspaces.create(&name("spent"), setup()).await.expect("made").workspace;
    workspace.close().await;
    eventually_async("the budget is used up", Duration::from_secs(60), || async {
        let meters = workspaces.ledger().meters(jiff::Timestamp::now()).await.expect("the recorded usage");
        meters.iter().all(|meter| meter.is_used_up()).then_some(())
    })
    .await;
    let workspace = workspaces.open(&name("spent")).await.expect("it opens");
    let refused = workspace.exec("touch project/spent").await.expect_err("there is no money");
    let over = matches!(refused, WorkspaceError::Unavailable(Unavailable::OverBudget { .. }));
    assert!(over, "{refused:?}");
    assert!(workspaces.show(&name("spent")).await.expect("it is there").paused);
    assert_eq!(workspace.checkpoints().await.expect("a list").len(), 1, "it was saved");
    workspace.close().await;
}
