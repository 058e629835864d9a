//! A workspace from its creation to its destruction.

use checkpoint::Which;
use sandbar_workspace::events::EventKind;
use sandbar_workspace::phase::Phase;
use sandbar_workspace::setup::Setup;
use sandbar_workspace::{OpenError, SetupError, Unavailable, Unsaved, Workspace, WorkspaceError, Workspaces};
use testing::{eventually_async, repeats};

use crate::support::{OnlyServer, World, assert_same, error_chain, name, run, setup, tree};

const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_destroyed_workspace_is_restored_by_its_name() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("life").await;
    let output = workspace.exec("echo $TOKEN; pwd; cat project/notes/first.txt").await.expect("it runs");
    assert_eq!(output.stdout_text(), "the-hidden-value\n/home/user\nhello\n");
    assert_eq!(workspace.mask(&output.stdout_text()), "***\n/home/user\nhello\n");
    workspace.write_file("project/new.txt", "mine").await.expect("written");
    assert_eq!(workspace.read_file("project/new.txt").await.expect("read"), "mine");
    let listed = workspace.list_files("project").await.expect("listed");
    assert!(listed.iter().any(|entry| entry.name == "new.txt"), "{listed:?}");

    let view = workspaces.show(&name("life")).await.expect("it is there");
    let shown = serde_json::to_value(&view).expect("JSON");
    assert_eq!((shown["state"].as_str(), shown["paused"].as_bool()), (Some("ready"), Some(false)));
    assert_eq!(shown["sandboxID"].as_str().map(ToOwned::to_owned), workspace.sandbox_id().map(|id| id.to_string()));
    let again = workspaces.create(&name("life"), setup()).await.expect_err("there is one");
    assert!(matches!(again, SetupError::Exists(_)), "{again:?}");

    let wanted = tree(&workspace).await;
    let stamp = workspace.destroy(Unsaved::Keep).await.expect("destroyed").expect("a snapshot");
    assert!(world.sandboxes("life").await.is_empty());
    assert!(matches!(workspaces.open(&name("life")).await, Err(OpenError::NotFound(_))));
    assert!(matches!(workspace.enter().await, Err(Unavailable::Closed(_))));

    let back = workspaces.create(&name("life"), setup()).await.expect("another of the same name");
    assert_eq!(back.restored.as_ref().map(|restored| restored.stamp), Some(stamp));
    assert_same(&tree(&back.workspace).await, &wanted);
    back.workspace.close().await;

    // Another workspace may start from its files.
    let from = Some(workspace.project().clone());
    let heir = workspaces.create(&name("heir"), Setup { from, ..setup() }).await.expect("a workspace");
    assert_eq!(heir.restored.as_ref().map(|restored| restored.stamp), Some(stamp));
    assert_same(&tree(&heir.workspace).await, &wanted);
    heir.workspace.destroy(Unsaved::Keep).await.expect("destroyed");
    let from = Some("nothing".parse().expect("a project"));
    let refused = workspaces.create(&name("orphaned"), Setup { from, ..setup() }).await.expect_err("it has no files");
    assert!(
        error_chain(&refused).contains("project nothing has no snapshot that can be restored"),
        "{}",
        error_chain(&refused)
    );
    let orphans = workspaces.orphans().await.expect("a list");
    assert!(orphans.is_empty(), "{orphans:?}");
}

/// All futures of a workspace are `Send`.
#[expect(dead_code, reason = "it is enough that it compiles")]
fn everything_can_be_spawned(workspaces: &Workspaces, workspace: &Workspace) {
    fn sent<T: Send>(_: T) {}
    let of = name("any");
    sent(workspaces.create(&of, setup()));
    sent(workspaces.open(&of));
    sent(workspaces.sweep(&OnlyServer));
    sent(workspace.enter());
    sent(workspace.exec("true"));
    sent(workspace.save_checkpoint());
    sent(workspace.restore(Which::Newest));
    sent(workspace.rotate());
    sent(workspace.pause());
    sent(workspace.serve(None));
    sent(workspace.commit_phase("any"));
    sent(workspace.destroy(Unsaved::Keep));
    sent(workspace.close());
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_pauses_lose_nothing() {
    let world = World::new();
    let (_, workspace) = world.workspace("cycles").await;
    let sandbox = workspace.sandbox_id();
    for cycle in 0..repeats(3, 50) {
        workspace.write_file(&format!("project/cycle-{cycle}"), vec![b'x'; 1000 * cycle]).await.expect("written");
        let before = tree(&workspace).await;
        workspace.pause().await.expect("paused");
        workspace.pause().await.expect("pausing what is paused is a success");
        let pass = workspace.enter().await.expect("it wakes");
        assert!(pass.was_resumed());
        drop(pass);
        assert_same(&tree(&workspace).await, &before);
    }
    assert_eq!(workspace.sandbox_id(), sandbox, "it is the same sandbox");
    let checkpoints = workspace.checkpoints().await.expect("a list");
    assert!((1..=5).contains(&checkpoints.len()), "{checkpoints:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_sandbox_is_restored_with_a_notice() {
    let world = World::new();
    let (_, workspace) = world.workspace("lost").await;
    let pass = workspace.enter().await.expect("it runs");
    run(
        pass.sandbox(),
        "mkdir project/node_modules && echo gone >project/node_modules/x && echo {} >project/package.json",
    )
    .await;
    drop(pass);
    workspace.save_checkpoint().await.expect("saved");
    let wanted = tree(&workspace).await;
    let pass = workspace.enter().await.expect("it runs");
    let epoch = pass.epoch();
    pass.sandbox().kill().await.expect("killed");
    drop(pass);

    workspace.exec("true").await.expect_err("it is gone, and that is found out by using it");
    let nothing = workspace.pause().await.expect_err("there is nothing to pause");
    assert!(matches!(nothing, WorkspaceError::Lost { .. }), "{nothing:?}");
    let pass = workspace.enter().await.expect("the snapshot brings it back");
    assert!(pass.was_resumed() && pass.epoch() > epoch);
    let notices = pass.notices();
    assert_eq!(notices.len(), 2, "{notices:?}");
    assert!(
        notices[0].contains("leave out generated folders") && notices[0].contains("project/node_modules"),
        "before"
    );
    assert!(notices[1].contains("was lost") && notices[1].contains("project/node_modules"), "{notices:?}");
    assert!(pass.notices().is_empty(), "delivered once");
    drop(pass);
    let wanted: Vec<String> = wanted.into_iter().filter(|line| !line.contains("node_modules")).collect();
    let found = tree(&workspace).await;
    // The excluded folder's parent was modified with it, and the restore knows that time.
    assert_same(&found, &wanted);
    assert_eq!(world.events.count(|event| matches!(event, EventKind::SandboxLost { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_in_place_and_commits_are_detected() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("commits").await;
    let committed = workspace.commit_phase("a phase").await.expect("committed");
    assert!(matches!(committed.phase, Phase::Committed(_)) && committed.checkpoint.is_some(), "{committed:?}");
    let again = workspace.commit_phase("nothing new").await.expect("nothing to do");
    assert!(matches!(again.phase, Phase::NothingToCommit { .. }) && again.checkpoint.is_none());
    let stamp = committed.checkpoint.expect("a snapshot").stamp;

    let commit =
        "cd project && echo 2 >two && git add two && git -c user.name=a -c user.email=a@example.com commit -qm two";
    workspace.exec(commit).await.expect("the agent commits");
    let error_chain = |event: &EventKind| matches!(event, EventKind::PhaseCommitted { message: None, .. });
    eventually_async("the commit is noticed", TIMEOUT, || async {
        (world.events.count(error_chain) == 1).then_some(())
    })
    .await;
    assert_eq!(workspace.checkpoints().await.expect("a list").len(), 2);

    let restored = workspace.restore(Which::Exactly(stamp)).await.expect("set back");
    assert_eq!(restored.stamp, stamp);
    workspace.read_file("project/two").await.expect_err("it is not there any more");
    workspace.close().await;
    assert_eq!(
        workspaces.checkpoints_of(workspace.project()).await.expect("a list").len(),
        2,
        "the newest has what gave way, and going back is no commit"
    );
    let workspace = workspaces.open(&name("commits")).await.expect("it opens");
    let newest = workspace.restore(Which::Newest).await.expect("and forth");
    assert!(newest.stamp > stamp);
    assert_eq!(workspace.read_file("project/two").await.expect("it is there"), "2\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_setup_continues_at_its_failed_step() {
    let world = World::new();
    let workspaces = world.workspaces().await;
    // A setup that cannot start leaves nothing to continue from.
    let named = Setup { env: [("1A".to_owned(), "value".into())].into(), ..setup() };
    let refused = workspaces.create(&name("steps"), named).await.expect_err("no shell takes that name");
    assert!(
        error_chain(&refused).contains("\"1A\"") && !error_chain(&refused).contains("value"),
        "{}",
        error_chain(&refused)
    );
    let nowhere = Setup { provider: Some("nowhere".parse().expect("a name")), ..setup() };
    let refused = workspaces.create(&name("steps"), nowhere).await.expect_err("there is no such provider");
    assert!(matches!(refused, SetupError::Placement(_)), "{refused:?}");
    assert!(matches!(workspaces.show(&name("steps")).await, Err(OpenError::NotFound(_))));

    let mut broken = setup();
    broken.prepare.commands.push("echo once >>/tmp/ran; test -e /tmp/allowed".to_owned());
    let error = workspaces.create(&name("steps"), broken.clone()).await.expect_err("the last command fails");
    assert!(error_chain(&error).contains("command 3"), "{}", error_chain(&error));
    let view = workspaces.show(&name("steps")).await.expect("it is remembered");
    assert_eq!(view.state.as_str(), "setting_up");
    let held = workspaces.open(&name("steps")).await.expect("no process holds it");
    assert!(matches!(held.enter().await, Err(Unavailable::NotSetUp(_))));
    held.close().await;

    let sandbox = view.sandbox.expect("a sandbox").parse().expect("an id");
    let client = if world.one.client().info(&sandbox).await.is_ok() { world.one.client() } else { world.two.client() };
    let sandbox = client.connect(&sandbox, sdk::Connect::default()).await.expect("it runs");
    run(&sandbox, "touch /tmp/allowed").await;
    let created = workspaces.create(&name("steps"), broken).await.expect("it goes on");
    assert_eq!(created.sandbox.as_ref(), Some(sandbox.id()), "in the same sandbox");
    assert_eq!(run(&sandbox, "cat /tmp/ran").await, "once\nonce\n");
    assert_eq!(world.sandboxes("steps").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_sandbox_can_be_attached() {
    let world = World::new();
    let (_, workspace) = world.workspace("attached").await;
    let other = world.two.sandbox().await;
    run(&other, "echo other >mark").await;
    workspace.attach(other.id()).await.expect("it runs");
    assert_eq!(workspace.read_file("mark").await.expect("its files"), "other\n");
    assert_eq!(workspace.provider().as_str(), "two");
    assert!(world.sandboxes("attached").await.is_empty(), "the one before was ended");
    let absent = "iabsent00000000000000".parse().expect("an id");
    assert!(matches!(workspace.attach(&absent).await, Err(WorkspaceError::Sandbox(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_in_place_kills_running_processes() {
    let world = World::new();
    let (_, workspace) = world.workspace("setback").await;
    workspace.save_checkpoint().await.expect("a snapshot");
    let writer = "setsid sh -c 'while :; do date >project/churn; sleep 0.05; done' </dev/null >/dev/null 2>&1 &";
    workspace.exec(writer).await.expect("it runs");
    eventually_async("the writer's first line", TIMEOUT, || async { workspace.read_file("project/churn").await.ok() })
        .await;
    workspace.restore(Which::Newest).await.expect("restored");
    let output = workspace.exec("ps -eo args | grep -c '[c]hurn'; ls project").await.expect("it runs");
    assert_eq!(output.stdout_text(), "0\nlink\nnotes\nsrc\n", "no writer, and no file of its");
}
