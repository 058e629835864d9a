//! Changes of sandbox during use: acknowledged writes are there afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbar_workspace::devserver::DevServer;
use sandbar_workspace::events::EventKind;
use sandbar_workspace::{MoveOptions, Unsaved, Workspace, WorkspaceError};
use sdk::label;
use testing::repeats;

use crate::support::{World, assert_same, name, run, setup, tree};

/// Writes continuously until stopped, and returns the number of acknowledged writes.
async fn write_continuously(workspace: Workspace, stop: Arc<AtomicBool>) -> usize {
    let mut acknowledged = 0;
    while !stop.load(Ordering::Acquire) {
        let path = format!("project/written/{acknowledged}");
        workspace.write_file(&path, acknowledged.to_string()).await.expect("a write waits at the gate and succeeds");
        let line = format!("echo {acknowledged} >>project/log");
        let output = workspace.exec(line.as_str()).await.expect("a command waits at the gate and succeeds");
        assert!(output.success());
        acknowledged += 1;
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn rotations_lose_no_acknowledged_write() {
    let world = World::new();
    let (_, workspace) = world.workspace("rotated").await;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_continuously(workspace.clone(), Arc::clone(&stop)));
    let rotations = repeats(3, 20);
    let mut seen = vec![workspace.sandbox_id()];
    for _ in 0..rotations {
        workspace.rotate().await.expect("a new sandbox");
        let now = workspace.sandbox_id();
        assert!(!seen.contains(&now), "{now:?} is not new");
        seen.push(now);
    }
    stop.store(true, Ordering::Release);
    let acknowledged = writer.await.expect("every write succeeded");
    assert!(acknowledged > 0);
    let check = format!(
        "cd project/written && for i in $(seq 0 {0}); do [ \"$(cat $i)\" = $i ] || exit 1; done; seq 0 {0} | cmp - ../log",
        acknowledged - 1
    );
    let output = workspace.exec(check.as_str()).await.expect("it runs");
    assert!(output.success(), "{acknowledged} writes: {}", output.stderr_text());
    assert_eq!(world.sandboxes("rotated").await.len(), 1, "the old ones are gone");
    assert_eq!(world.events.count(|event| matches!(event, EventKind::Rotated { .. })), rotations);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_reports_what_did_not_survive() {
    let world = World::new();
    let (_, workspace) = world.workspace("moved").await;
    let pass = workspace.enter().await.expect("it runs");
    run(pass.sandbox(), "mkdir -p project/node_modules/a; touch project/node_modules/a/b project/package.json").await;
    let background = sdk::Command::exec("sleep", ["1000"]).no_timeout();
    pass.sandbox().commands().start(background).await.expect("it runs on");
    // Internal commands are not reported, and commands run for the user are reported by their own
    // line.
    let helper = |number: &str| sdk::Command::exec("sleep", [number]).no_timeout();
    for ours in [label::tag_internal(helper("2000")), label::tag_for_user(helper("3000"), "\nnpm run watch\n")] {
        pass.sandbox().commands().start(ours).await.expect("it runs on");
    }
    drop(pass);
    let wanted: Vec<String> =
        tree(&workspace).await.into_iter().filter(|line| !line.contains("node_modules")).collect();

    let two = "two".parse().expect("a name");
    let moved = workspace.move_to(&two, MoveOptions::default()).await.expect("it moves");
    assert_eq!((moved.provider.as_str(), workspace.provider().as_str()), ("two", "two"));
    assert_same(&tree(&workspace).await, &wanted);
    let output = workspace.exec("echo $TOKEN").await.expect("it runs");
    assert_eq!(output.stdout_text(), "the-hidden-value\n", "the environment comes along");
    let notices = workspace.enter().await.expect("it runs").notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("sleep 1000") && notices[0].contains("project/node_modules"), "{notices:?}");
    assert!(notices[0].contains("npm run watch"), "{notices:?}");
    assert!(!notices[0].contains("2000") && !notices[0].contains("3000"), "{notices:?}");
    assert!(matches!(workspace.move_to(&two, MoveOptions::default()).await, Err(WorkspaceError::AlreadyThere(..))));

    workspace.move_to(&"one".parse().expect("a name"), MoveOptions::default()).await.expect("and back");
    assert_same(&tree(&workspace).await, &wanted);
    assert_eq!(world.sandboxes("moved").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_server_restarts_after_every_change() {
    let world = World::new();
    let workspaces = world.workspaces().await;
    let server = DevServer {
        install_command: Some("mkdir -p dist && echo dist >.gitignore && date +%s%N >dist/installed".to_owned()),
        ..DevServer::new("exec python3 -m http.server $PORT", 8123)
    };
    let setup = sandbar_workspace::setup::Setup { dev_server: Some(server), ..setup() };
    let workspace = workspaces.create(&name("served"), setup).await.expect("made").workspace;
    let ready = || world.events.count(|event| matches!(event, EventKind::DevServerReady { port: 8123, .. }));
    let answers = async || {
        let output = workspace.exec("python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8123/notes/first.txt\").read().decode())'");
        let output = output.await.expect("it runs");
        assert!(output.stdout_text().starts_with("hello"), "{}", output.stderr_text());
    };
    let installed = async || workspace.read_file("project/dist/installed").await.expect("it was installed");
    assert_eq!(ready(), 1);
    answers().await;
    let first = installed().await;

    workspace.pause().await.expect("paused");
    workspace.resume().await.expect("resumed");
    assert_eq!(ready(), 2);
    answers().await;
    assert_eq!(installed().await, first, "a resume does not install");

    workspace.rotate().await.expect("rotated");
    assert_eq!(ready(), 3);
    answers().await;
    assert_ne!(installed().await, first, "excluded folders are generated again");
    let notices = workspace.enter().await.expect("it runs").notices();
    assert!(notices.len() == 2 && notices.iter().all(|line| line.contains("project/dist")), "{notices:?}");

    // A new workspace of the same name gets the dev server of the tombstone, unless it declares
    // another.
    workspace.destroy(Unsaved::Keep).await.expect("destroyed");
    let again = workspaces.create(&name("served"), crate::support::setup()).await.expect("made again").workspace;
    assert_eq!(ready(), 4);
    again.destroy(Unsaved::Keep).await.expect("destroyed");
    let another = DevServer::new("exec python3 -m http.server $PORT", 8124);
    let another = sandbar_workspace::setup::Setup { dev_server: Some(another), ..crate::support::setup() };
    let again = workspaces.create(&name("served"), another).await.expect("made again").workspace;
    assert_eq!(ready(), 4, "not the one before");
    again.destroy(Unsaved::Keep).await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_waits_only_briefly_for_operations() {
    let world = World::new();
    let settings =
        sandbar_workspace::Settings { drain_timeout: Duration::from_millis(500), ..crate::support::settings() };
    let workspaces = world.fixture().workspaces(settings, world.events.clone()).await;
    let created = workspaces.create(&name("stays"), setup()).await.expect("made");
    let workspace = created.workspace;
    let pass = workspace.enter().await.expect("it runs");
    let old = workspace.sandbox_id();
    workspace.rotate().await.expect("it does not wait for long");
    assert_ne!(workspace.sandbox_id(), old);
    pass.sandbox().commands().run("true").await.expect_err("its sandbox is gone");
}
