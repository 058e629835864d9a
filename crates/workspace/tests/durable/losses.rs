//! What a lost sandbox costs: as little as possible, reported exactly, and never earlier
//! checkpoints.

use std::time::Duration;

use checkpoint::{SaveError, SaveOccasion};
use sandbar_workspace::events::EventKind;
use sandbar_workspace::{Settings, Unsaved, WorkspaceError};
use sdk::{Connect, Pause};
use testing::eventually_async;

use crate::support::{World, assert_same, name, run, settings, setup, tree};

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_reported_with_the_time_of_the_checkpoint() {
    let world = World::new();
    let (_, workspace) = world.workspace("told").await;
    let saved = workspace.save_checkpoint().await.expect("saved");
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

    // A rotation of a workspace whose sandbox is gone reports it too.
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    pass.mark_suspect();
    drop(pass);
    let rotated = workspace.rotate().await.expect("rotated");
    assert_eq!(rotated.auto_restore.expect("it says so").reason, "sandbox_lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_checkpoints_are_renewed_by_the_interval() {
    let world = World::new();
    let settings = Settings { save_interval: Duration::from_millis(500), ..settings() };
    let workspaces = world.fixture().workspaces(settings.clone(), world.events.clone()).await;
    let workspace = workspaces.create(&name("by-itself"), setup()).await.expect("made").workspace;
    workspace.write_file("project/later", "acknowledged").await.expect("written");
    let saves = || world.events.count(|event| matches!(event, EventKind::CheckpointSaved { .. }));
    eventually_async("a save by the interval", TIMEOUT, || async { (saves() > 0).then_some(()) }).await;
    let listed = workspace.checkpoints().await.expect("a list");
    assert_eq!(listed.last().expect("one").occasion, SaveOccasion::Interval);
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().kill().await.expect("killed");
    pass.mark_suspect();
    drop(pass);
    assert_eq!(&workspace.read_file("project/later").await.expect("it is there")[..], b"acknowledged");

    // Maintenance saves what a process leaves unsaved.
    workspace.write_file("project/last", "acknowledged").await.expect("written");
    workspace.close().await;
    let before = saves();
    let of = name("by-itself");
    eventually_async("a save by maintenance", TIMEOUT, || async {
        workspaces.maintain(&of).await.expect("it is known");
        (saves() > before).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unchanged_saves_store_nothing_and_phases_outlive_pauses() {
    let world = World::new();
    let (_, workspace) = world.workspace("equal").await;
    let first = workspace.save_checkpoint().await.expect("saved");
    assert!(!first.unchanged);
    for _ in 0..3 {
        workspace.pause().await.expect("paused");
        workspace.resume().await.expect("resumed");
        let again = workspace.save_checkpoint().await.expect("saved");
        assert_eq!((again.unchanged, again.stamp, again.files), (true, first.stamp, first.files));
    }
    let listed = workspace.checkpoints().await.expect("a list");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(listed[0].saved_at > listed[0].created_at, "its time is touched");

    workspace.write_file("project/phase", "done").await.expect("written");
    let phase = workspace.commit_phase("a phase").await.expect("committed").checkpoint.expect("saved");
    for round in 0..6 {
        workspace.write_file("project/round", round.to_string()).await.expect("written");
        workspace.pause().await.expect("paused");
        workspace.resume().await.expect("resumed");
    }
    let listed = workspace.checkpoints().await.expect("a list");
    assert_eq!(listed.len(), 5, "{listed:?}");
    assert!(listed.iter().any(|one| one.stamp == phase.stamp && one.occasion == SaveOccasion::Phase), "{listed:?}");
    assert!(listed.iter().any(|one| one.stamp == first.stamp), "a requested save stays: {listed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn saves_of_an_emptied_tree_keep_the_large_checkpoint() {
    let world = World::new();
    let (_, workspace) = world.workspace("emptied").await;
    let full = workspace.save_checkpoint().await.expect("saved");
    workspace.exec("rm -rf project").await.expect("removed");
    for round in 0..6 {
        workspace.write_file("round", round.to_string()).await.expect("written");
        workspace.save_checkpoint().await.expect("saved");
    }
    let checkpoints = world.workspaces().await.checkpoints().clone();
    let has_full = async || {
        let listed = workspace.checkpoints().await.expect("a list");
        (listed.len(), listed.iter().any(|one| one.stamp == full.stamp))
    };
    assert_eq!(has_full().await, (6, true), "as a sixth");
    // Without the record of the shrink no checkpoint is removed, until a user confirms the shrink.
    let put = checkpoints.put_metadata(workspace.project(), "shrink.json", "{\"before\":".into()).await;
    put.expect("overwritten");
    for round in 6..8 {
        workspace.write_file("round", round.to_string()).await.expect("written");
        workspace.save_checkpoint().await.expect("saved");
    }
    assert_eq!(has_full().await, (8, true), "with an unreadable record");
    let pruned = checkpoints.confirm_shrink(workspace.project()).await.expect("confirmed");
    assert_eq!((pruned.checkpoints.first(), pruned.checkpoints.len()), (Some(&full.stamp), 3));
    assert_eq!(has_full().await, (5, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_writes_are_restored_from_the_checkpoint() {
    let world = World::new();
    let (_, workspace) = world.workspace("cut").await;
    let before = workspace.save_checkpoint().await.expect("saved");
    workspace.write_file("project/last", "acknowledged").await.expect("written");
    let wanted = tree(&workspace).await;
    workspace.pause().await.expect("paused");
    let newest = workspace.checkpoints().await.expect("a list").last().expect("one").stamp;

    // As after a power cut: the disk of some seconds ago, and another boot id.
    let id = workspace.sandbox_id().expect("a sandbox");
    let sandbox = world.one.client().connect(&id, Connect::default()).await.expect("it wakes");
    run(&sandbox, &format!("rm project/last; echo {} >.sandbar/snapshot", before.stamp)).await;
    sandbox.pause(Pause::files_only()).await.expect("paused");

    let back = workspace.resume().await.expect("it wakes").expect("it was set back");
    assert_eq!((back.reason, back.restored.stamp), ("writes_lost", newest));
    assert_eq!(workspace.sandbox_id(), Some(id.clone()), "in the same sandbox");
    assert_same(&tree(&workspace).await[1..], &wanted[1..]);
    assert!(back.notice.contains("loses power"), "{}", back.notice);
    assert!(
        !workspace.save_checkpoint().await.expect("saved").changed.iter().any(|path| path.text() == "project/last")
    );

    // Another boot id alone is not a loss.
    workspace.write_file("project/unsaved", "mine").await.expect("written");
    let pass = workspace.enter().await.expect("it runs");
    pass.sandbox().pause(Pause::files_only()).await.expect("paused");
    pass.mark_suspect();
    drop(pass);
    assert!(workspace.resume().await.expect("it wakes").is_none());
    assert_eq!(&workspace.read_file("project/unsaved").await.expect("it is there")[..], b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_writes_are_found_after_another_client_s_resume() {
    let world = World::new();
    let (_, workspace) = world.workspace("resumed").await;
    let before = workspace.save_checkpoint().await.expect("saved");
    workspace.write_file("project/last", "acknowledged").await.expect("written");
    workspace.pause().await.expect("paused");
    let newest = workspace.checkpoints().await.expect("a list").last().expect("one").stamp;

    // As after a power cut, and another client is the first to use the sandbox.
    let id = workspace.sandbox_id().expect("a sandbox");
    let client = world.one.client();
    let sandbox = client.connect(&id, Connect::default()).await.expect("it wakes");
    run(&sandbox, &format!("rm project/last; echo {} >.sandbar/snapshot", before.stamp)).await;
    sandbox.pause(Pause::files_only()).await.expect("paused");
    client.connect(&id, Connect::default()).await.expect("it wakes");

    let back = workspace.resume().await.expect("it runs").expect("it was set back");
    assert_eq!((back.reason, back.restored.stamp), ("writes_lost", newest));
    assert_eq!(workspace.sandbox_id(), Some(id.clone()), "in the same sandbox");
    assert_eq!(&workspace.read_file("project/last").await.expect("it is there")[..], b"acknowledged");

    // The same for a process that finds a sandbox running that its record does not call paused.
    workspace.write_file("project/last", "again").await.expect("written");
    let after = workspace.save_checkpoint().await.expect("saved");
    workspace.close().await;
    let sandbox = client.connect(&id, Connect::default()).await.expect("it runs");
    run(&sandbox, &format!("rm project/last; echo {} >.sandbar/snapshot", before.stamp)).await;
    sandbox.pause(Pause::files_only()).await.expect("paused");
    client.connect(&id, Connect::default()).await.expect("it wakes");
    let workspaces = world.workspaces().await;
    let workspace = workspaces.open(&name("resumed")).await.expect("it opens");
    let back = workspace.resume().await.expect("it runs").expect("it was set back");
    assert_eq!((back.reason, back.restored.stamp), ("writes_lost", after.stamp));
    assert_eq!(&workspace.read_file("project/last").await.expect("it is there")[..], b"again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_sandbox_is_paused_and_resumed_from_its_disk() {
    let world = World::new();
    let (workspaces, workspace) = world.workspace("over").await;
    workspace.write_file("project/unsaved", "mine").await.expect("written");
    let id = workspace.sandbox_id().expect("a sandbox");
    workspace.close().await;
    let sandbox = world.one.client().connect(&id, Connect::default()).await.expect("it runs");
    sandbox.set_timeout(Duration::from_secs(1)).await.expect("its end is near");
    let client = world.one.client();
    eventually_async("a pause at the end of its time", TIMEOUT, || async {
        let found = client.inspect(&id).await.expect("it is kept");
        (found.detail.listed.state == sdk::model::SandboxState::Paused).then_some(())
    })
    .await;
    let workspace = workspaces.open(&name("over")).await.expect("opened");
    assert!(workspace.resume().await.expect("it wakes").is_none(), "from its own disk");
    assert_eq!(&workspace.read_file("project/unsaved").await.expect("it is there")[..], b"mine");
    assert_eq!(workspace.sandbox_id(), Some(id));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_variables_block_the_checkpoint() {
    let world = World::new();
    let (_, workspace) = world.workspace("secret").await;
    let before = workspace.save_checkpoint().await.expect("saved");
    // Session files are excluded, and the rest is saved.
    workspace
        .exec("mkdir -p .sandbar/s/run && echo $TOKEN | tee .sandbar/s/env >.sandbar/s/run/1.env")
        .await
        .expect("it runs");
    workspace.write_file("project/code", "os.environ['TOKEN']").await.expect("written");
    let saved = workspace.save_checkpoint().await.expect("saved");
    assert_eq!(saved.files, before.files + 1, "without the session's files");

    workspace.exec("echo TOKEN=$TOKEN >project/.env").await.expect("it runs");
    let refused = workspace.save_checkpoint().await.expect_err("a value would be kept in plain text");
    let WorkspaceError::Save(SaveError::Exposed { files, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!(files.iter().map(ToString::to_string).collect::<Vec<_>>(), ["project/.env (TOKEN)"]);
    assert!(!refused.to_string().contains("the-hidden-value"), "{refused}");
    let sandbox = workspace.sandbox_id();
    workspace.rotate().await.expect_err("the old sandbox has the files");
    workspace.destroy(Unsaved::Keep).await.expect_err("the same");
    workspace.pause().await.expect("a pause keeps them, too");
    let pass = workspace.enter().await.expect("it wakes");
    assert!(pass.notices().iter().any(|line| line.contains("project/.env (TOKEN)")), "sessions are notified");
    drop(pass);
    assert_eq!(workspace.sandbox_id(), sandbox);
    assert_eq!(&workspace.read_file("project/.env").await.expect("it is there")[..], b"TOKEN=the-hidden-value\n");

    // A file that was committed and deleted is still in an object of Git.
    let commit = "cd project && (git init -q .; git add .env && git -c user.name=t -c user.email=t@example.com \
                  commit -qm env && git hash-object .env && rm .env)";
    let object = workspace.exec(commit).await.expect("it runs").stdout_text().trim().to_owned();
    let refused = workspace.save_checkpoint().await.expect_err("the object has the value");
    let WorkspaceError::Save(SaveError::Exposed { files, .. }) = &refused else { panic!("{refused:?}") };
    let path = format!("project/.git/objects/{}/{} (TOKEN)", &object[..2], &object[2..]);
    assert_eq!(files.iter().map(ToString::to_string).collect::<Vec<_>>(), [path]);

    workspace.allow_env_values(true).await.expect("noted");
    workspace.save_checkpoint().await.expect("saved, since that is allowed");
    workspace.rotate().await.expect("rotated");
}
