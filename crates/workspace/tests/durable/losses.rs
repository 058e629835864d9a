//! What a lost sandbox costs: as little as possible, told exactly, and never the snapshots from
//! before.

use std::time::Duration;

use sandbar_workspace::events::EventKind;
use sandbar_workspace::snapshot::{Occasion, SaveError};
use sandbar_workspace::{Settings, Unsaved, WorkspaceError};
use sdk::{Connect, Pause};
use testing::eventually_async;

use crate::support::{World, assert_same, name, run, settings, setup, tree};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_told_with_the_time_since_when_changes_are_gone() {
    let world = World::new();
    let (_, workspace) = world.workspace("told").await;
    let saved = workspace.snapshot().await.expect("saved");
    workspace.write_file("project/later", "acknowledged").await.expect("written");
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    drop(pass);
    workspace.exec("true").await.expect_err("it is gone, and that is found out by using it");

    let back = workspace.resume().await.expect("the snapshot brings it back").expect("and says so");
    assert_eq!((back.reason, back.restored.stamp), ("sandbox_lost", saved.stamp));
    let time = saved.stamp.time().strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
    for part in [&*time, "Changes after that are gone, in /home/user as well", "files outside /home/user"] {
        assert!(back.notice.contains(part), "{part} in {}", back.notice);
    }
    let notices = workspace.enter().await.expect("it runs").notices();
    assert_eq!(notices, std::slice::from_ref(&back.notice));
    assert!(workspace.resume().await.expect("it runs").is_none(), "nothing new");

    // Who rotates a workspace whose sandbox is gone is told, too.
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    pass.doubt();
    drop(pass);
    let rotated = workspace.rotate().await.expect("rotated");
    assert_eq!(rotated.brought_back.expect("it says so").reason, "sandbox_lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_saved_by_itself_when_the_newest_snapshot_is_old() {
    let world = World::new();
    let settings = Settings { save_interval: Duration::from_millis(500), ..settings() };
    let workspaces = world.place().workspaces(settings.clone(), world.events.clone()).await;
    let workspace = workspaces.create(&name("by-itself"), setup()).await.expect("made").workspace;
    workspace.write_file("project/later", "acknowledged").await.expect("written");
    let saves = || world.events.count(|event| matches!(event, EventKind::SnapshotSaved { .. }));
    eventually_async("a save by the interval", PATIENCE, || async { (saves() > 0).then_some(()) }).await;
    let listed = workspace.snapshots().await.expect("a list");
    assert_eq!(listed.last().expect("one").occasion, Occasion::Interval);
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    pass.doubt();
    drop(pass);
    assert_eq!(&workspace.read_file("project/later").await.expect("it is there")[..], b"acknowledged");

    // What a process leaves unsaved is saved by the attendant.
    workspace.write_file("project/last", "acknowledged").await.expect("written");
    workspace.close().await;
    let before = saves();
    let of = name("by-itself");
    eventually_async("a save by the attendant", PATIENCE, || async {
        workspaces.attend(&of).await.expect("it is known");
        (saves() > before).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_saves_make_no_snapshots_and_phases_outlive_pauses() {
    let world = World::new();
    let (_, workspace) = world.workspace("equal").await;
    let first = workspace.snapshot().await.expect("saved");
    assert!(!first.unchanged);
    for _ in 0..3 {
        workspace.pause().await.expect("paused");
        workspace.resume().await.expect("resumed");
        let again = workspace.snapshot().await.expect("saved");
        assert_eq!((again.unchanged, again.stamp, again.files), (true, first.stamp, first.files));
    }
    let listed = workspace.snapshots().await.expect("a list");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0].saved_at > listed[0].created_at, "its time is touched");

    workspace.write_file("project/phase", "done").await.expect("written");
    let phase = workspace.commit_phase("a phase").await.expect("committed").snapshot.expect("saved");
    for round in 0..6 {
        workspace.write_file("project/round", round.to_string()).await.expect("written");
        workspace.pause().await.expect("paused");
        workspace.resume().await.expect("resumed");
    }
    let listed = workspace.snapshots().await.expect("a list");
    assert_eq!(listed.len(), 5, "{listed:?}");
    assert!(listed.iter().any(|one| one.stamp == phase.stamp && one.occasion == Occasion::Phase), "{listed:?}");
    assert!(listed.iter().any(|one| one.stamp == first.stamp), "a requested save stays: {listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_saves_of_an_emptied_tree_do_not_push_out_the_files() {
    let world = World::new();
    let (_, workspace) = world.workspace("emptied").await;
    let full = workspace.snapshot().await.expect("saved");
    workspace.exec("rm -rf project").await.expect("removed");
    for round in 0..6 {
        workspace.write_file("round", round.to_string()).await.expect("written");
        workspace.snapshot().await.expect("saved");
    }
    let snapshots = world.workspaces().await.snapshots().clone();
    let has_full = async || {
        let listed = workspace.snapshots().await.expect("a list");
        (listed.len(), listed.iter().any(|one| one.stamp == full.stamp))
    };
    assert_eq!(has_full().await, (6, true), "as a sixth");
    let pruned = snapshots.confirm_shrink(workspace.project()).await.expect("confirmed");
    assert_eq!(pruned.snapshots, [full.stamp]);
    assert_eq!(has_full().await, (5, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_lost_its_last_writes_is_set_back_to_the_snapshot_that_has_them() {
    let world = World::new();
    let (_, workspace) = world.workspace("cut").await;
    let before = workspace.snapshot().await.expect("saved");
    workspace.write_file("project/last", "acknowledged").await.expect("written");
    let wanted = tree(&workspace).await;
    workspace.pause().await.expect("paused");
    let newest = workspace.snapshots().await.expect("a list").last().expect("one").stamp;

    // As a power cut leaves it: the disk of some seconds ago, and another boot.
    let id = workspace.sandbox_id().expect("a sandbox");
    let sandbox = world.one.client().connect(&id, Connect::default()).await.expect("it wakes");
    run(&sandbox, &format!("rm project/last; echo {} >.sandbar/snapshot", before.stamp)).await;
    sandbox.pause(Pause::files_only()).await.expect("paused");

    let back = workspace.resume().await.expect("it wakes").expect("it was set back");
    assert_eq!((back.reason, back.restored.stamp), ("writes_lost", newest));
    assert_eq!(workspace.sandbox_id(), Some(id.clone()), "in the same sandbox");
    assert_same(&tree(&workspace).await[1..], &wanted[1..]);
    assert!(back.notice.contains("loses power"), "{}", back.notice);
    assert!(!workspace.snapshot().await.expect("saved").changed.iter().any(|path| path.text() == "project/last"));

    // Another boot alone is no loss.
    workspace.write_file("project/unsaved", "mine").await.expect("written");
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().pause(Pause::files_only()).await.expect("paused");
    pass.doubt();
    drop(pass);
    assert!(workspace.resume().await.expect("it wakes").is_none());
    assert_eq!(&workspace.read_file("project/unsaved").await.expect("it is there")[..], b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_time_is_over_is_paused_and_brought_back_from_its_own_disk() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("over").await;
    workspace.write_file("project/unsaved", "mine").await.expect("written");
    let id = workspace.sandbox_id().expect("a sandbox");
    workspace.close().await;
    let sandbox = world.one.client().connect(&id, Connect::default()).await.expect("it runs");
    sandbox.set_timeout(Duration::from_secs(1)).await.expect("its end is near");
    let client = world.one.client();
    eventually_async("a pause at the end of its time", PATIENCE, || async {
        let looked = client.look(&id).await.expect("it is kept");
        (looked.detail.listed.state == sdk::model::SandboxState::Paused).then_some(())
    })
    .await;
    let workspace = workspaces.open(&name("over")).await.expect("opened");
    assert!(workspace.resume().await.expect("it wakes").is_none(), "from its own disk");
    assert_eq!(&workspace.read_file("project/unsaved").await.expect("it is there")[..], b"mine");
    assert_eq!(workspace.sandbox_id(), Some(id));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_variables_get_into_no_archive_and_no_work_is_lost_for_it() {
    let world = World::new();
    let (_, workspace) = world.workspace("secret").await;
    let before = workspace.snapshot().await.expect("saved");
    // Ours give way, and the rest is saved.
    workspace
        .exec("mkdir -p .sandbar/s/run && echo $TOKEN | tee .sandbar/s/env >.sandbar/s/run/1.env")
        .await
        .expect("it runs");
    workspace.write_file("project/code", "os.environ['TOKEN']").await.expect("written");
    let saved = workspace.snapshot().await.expect("saved");
    assert_eq!(saved.files, before.files + 1, "without the session's files");

    workspace.exec("echo TOKEN=$TOKEN >project/.env").await.expect("it runs");
    let refused = workspace.snapshot().await.expect_err("a value would be kept in plain text");
    let WorkspaceError::Save(SaveError::Exposed { files, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!(files.iter().map(ToString::to_string).collect::<Vec<_>>(), ["project/.env (TOKEN)"]);
    assert!(!refused.to_string().contains("the-hidden-value"), "{refused}");
    let sandbox = workspace.sandbox_id();
    workspace.rotate().await.expect_err("the old sandbox has the files");
    workspace.destroy(Unsaved::Keep).await.expect_err("the same");
    workspace.pause().await.expect("a pause keeps them, too");
    let pass = workspace.enter().await.expect("it wakes");
    assert!(pass.notices().iter().any(|line| line.contains("project/.env (TOKEN)")), "those who work here are told");
    drop(pass);
    assert_eq!(workspace.sandbox_id(), sandbox);
    assert_eq!(&workspace.read_file("project/.env").await.expect("it is there")[..], b"TOKEN=the-hidden-value\n");

    workspace.allow_env_values(true).await.expect("noted");
    workspace.snapshot().await.expect("saved, since that is allowed");
    workspace.rotate().await.expect("rotated");
}
