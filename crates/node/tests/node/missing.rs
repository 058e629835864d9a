//! Missing files, missing records and clocks that are set: the server boots nothing empty and
//! deletes nothing.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Lab, new_sandbox, pausing, with_spec};
use engine::Trash;
use jiff::SignedDuration;
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::memory::MemoryRecords;
use sandbar_node::ports::Records;
use sandbar_node::{
    Closing, CreateError, FilesId, FilesOwner, NewSandbox, Node, OnMissing, OpenError, PersistedState, RecoverError,
    Recovered, SandboxError, SandboxId, VolumeError,
};
use testing::{SOON, eventually_async};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: SignedDuration = SignedDuration::from_hours(1);

async fn paused(node: &Node, kept: PauseMode) -> SandboxId {
    let id = node.create(new_sandbox(), None).await.expect("it is made").id;
    node.pause(&id, kept, false).await.expect("it is paused");
    id
}

#[track_caller]
fn assert_missing(error: &SandboxError, expected: &FilesOwner) {
    assert!(matches!(error, SandboxError::FilesMissing { owner, .. } if owner == expected), "{error:?}");
    assert!(error.to_string().contains("sandbar recover"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_without_files_is_not_booted_empty() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = paused(&node, PauseMode::Filesystem).await;
    lab.engine.lose_files(&FilesId::from(&id));
    let owner = FilesOwner::Sandbox(id.clone());
    let boots = lab.engine.boots().len();
    assert_missing(&node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect_err("no files"), &owner);
    assert_missing(&node.resume(&id, 60 * SECOND, PauseMode::Filesystem, None).await.expect_err("no files"), &owner);
    assert_missing(&node.auto_resume(&id).await.err().expect("no files"), &owner);
    assert_missing(&node.fork(&id, 60 * SECOND, 1).await.expect_err("no files"), &owner);
    assert_eq!(lab.engine.boots().len(), boots, "nothing was booted");
    assert!(lab.engine.files().is_empty(), "nothing was made in their place");
    assert_eq!(
        node.get(&id).map(|seen| seen.standing),
        Some(PersistedState::Paused(PauseMode::Filesystem)),
        "it is still listed"
    );
    node.kill(&id).await.expect("and can be ended");
    assert!(node.get(&id).is_none());
}

#[tokio::test(start_paused = true)]
async fn snapshots_and_volumes_without_files_say_so() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = paused(&node, PauseMode::Filesystem).await;
    let snapshot = node.snapshot(&id, Some("state")).await.expect("a snapshot");
    let files = lab.engine.copies().pop().expect("it is a copy").1;
    lab.engine.lose_files(&files);
    let from = node.resolve_template(&snapshot.id).expect("it is known");
    let template = from.template.id.clone();
    let refused = node.create(NewSandbox { from, ..new_sandbox() }, None).await.expect_err("no files");
    let CreateError::Sandbox(error) = refused else { panic!("{refused:?}") };
    assert_missing(&error, &FilesOwner::Template(template));

    let volume = node.create_volume("cache").await.expect("a volume");
    let mount = node.volume_mount("cache", "/cache").expect("it is there");
    lab.engine.lose_files(&volume.files);
    let owner = FilesOwner::Volume("cache".to_owned());
    let refused = node.create(with_spec(|spec| spec.volumes = vec![mount]), None).await.expect_err("no files");
    let CreateError::Sandbox(error) = refused else { panic!("{refused:?}") };
    assert_missing(&error, &owner);
    node.close(Closing::Keep).await.expect("it closes");
    let node = lab.open().await;
    let refused = node.volume_directory(&volume.id).await.expect_err("no files");
    let VolumeError::Node(error) = refused else { panic!("{refused:?}") };
    assert_missing(&error, &owner);
}

#[tokio::test(start_paused = true)]
async fn files_without_a_record_can_be_recovered() {
    let mut lab = Lab::new();
    let node = lab.open().await;
    let mut new = new_sandbox();
    new.spec.metadata.insert("workspace".to_owned(), "w".to_owned());
    new.spec.env_vars.insert("KEY".to_owned(), "hunter2".to_owned());
    let id = node.create(new, None).await.expect("it is made").id;
    let before = node.get(&id).expect("it runs").record;
    node.snapshot(&id, Some("state")).await.expect("a snapshot");
    let volume = node.create_volume("cache").await.expect("a volume");
    node.close(Closing::Keep).await.expect("it closes");

    lab.records = Arc::new(MemoryRecords::default());
    let node = lab.open().await;
    assert!(node.get(&id).is_none() && node.volumes().is_empty());
    assert_eq!(lab.engine.files(), HashSet::from([volume.files.clone()]), "a volume stays where it is");
    assert!(lab.engine.running().is_empty(), "what no record names does not run on unseen");
    let found = node.recoverable().await.expect("a list");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(!format!("{found:?}").contains("hunter2"), "no secrets are kept there");

    assert_eq!(node.recover(id.as_str()).await.expect("it is back"), Recovered::Sandbox(id.clone()));
    let seen = node.get(&id).expect("it is there");
    assert_eq!(seen.standing, PersistedState::Paused(PauseMode::Filesystem));
    assert_eq!(
        (&seen.record.spec.metadata, seen.record.spec.resources),
        (&before.spec.metadata, before.spec.resources)
    );
    assert_ne!(seen.record.access_token, before.access_token);
    node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect("it resumes");
    let log = node.log(&id).await.expect("a log");
    assert!(!log.is_empty());

    let Recovered::Template(_) = node.recover("state").await.expect("it is back") else { panic!("a template") };
    let from = node.resolve_template("state").expect("it can be used again");
    node.create(NewSandbox { from, ..new_sandbox() }, None).await.expect("a sandbox of it");

    let back = node.recover("cache").await.expect("it is back");
    assert_eq!(back, Recovered::Volume { id: volume.id.clone(), name: "cache".to_owned() });
    node.volume_directory(&volume.id).await.expect("its files are there");

    assert!(node.recoverable().await.expect("a list").is_empty());
    assert!(matches!(node.recover("cache").await, Err(RecoverError::NotFound(_))));
    node.close(Closing::Keep).await.expect("it closes");

    // A normal start reports nothing.
    let node = lab.open().await;
    assert!(node.recoverable().await.expect("a list").is_empty());
    assert!(node.get(&id).is_some());
}

#[tokio::test(start_paused = true)]
async fn the_trash_is_emptied_after_its_days_and_not_before() {
    let lab = Lab::new();
    let stranded = lab.engine.strand_files();
    let node = lab.open().await;
    assert_eq!(node.recoverable().await.expect("a list").len(), 1);
    tokio::time::sleep(6 * 24 * 3600 * SECOND).await;
    assert_eq!(node.recoverable().await.expect("a list").len(), 1, "after six days");
    tokio::time::sleep(25 * 3600 * SECOND).await;
    assert!(lab.engine.trash().await.expect("a list").is_empty(), "after seven");
    assert!(matches!(node.recover(stranded.as_str()).await, Err(RecoverError::NotFound(_))));
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_clock_does_not_empty_the_trash() {
    let lab = Lab::new();
    lab.engine.strand_files();
    let trashed = async || lab.engine.trash().await.expect("a list").len();
    let node = lab.open().await;
    for days in [30, -60, 60] {
        lab.clock.jump(24 * days * HOUR);
        tokio::time::sleep(61 * 60 * SECOND).await;
        assert_eq!(trashed().await, 1, "one hour after a jump of {days} days");
        let deleted_at = node.recoverable().await.expect("a list")[0].deleted_at.expect("it is in the trash");
        let left = deleted_at.duration_since(node.now()).as_hours();
        assert!((6 * 24..7 * 24).contains(&left), "what is shown follows the clock: {left} hours");
    }
    // What a server observed, the next one counts.
    tokio::time::sleep(3 * 24 * 3600 * SECOND).await;
    node.close(Closing::Keep).await.expect("it closes");
    let node = lab.open().await;
    lab.clock.jump(30 * 24 * HOUR);
    tokio::time::sleep((3 * 24 + 20) * 3600 * SECOND).await;
    assert_eq!(trashed().await, 1, "not before");
    tokio::time::sleep(3 * 3600 * SECOND).await;
    assert_eq!(trashed().await, 0, "after seven days of two servers");
    drop(node);
}

#[tokio::test]
async fn a_new_database_beside_used_files_is_refused() {
    let lab = Lab::new();
    // The files are in memory, so a directory without the database is another directory.
    // Connections that were dropped close later and would remove files of a database of the same
    // name.
    let (old, data) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let node = open_at(&lab, old.path(), OnMissing::Refuse).await.expect("an empty directory is no reason to refuse");
    let id = paused(&node, PauseMode::Filesystem).await;
    node.close(Closing::Keep).await.expect("it closes");
    drop(node);
    let open = |on_missing| open_at(&lab, data.path(), on_missing);
    let database = data.path().join("node.sqlite");
    for content in [None, Some("")] {
        content.into_iter().for_each(|text| std::fs::write(&database, text).expect("written"));
        for _ in 0..2 {
            let refused = open(OnMissing::Refuse).await.err().expect("the files have no records");
            assert!(matches!(refused, OpenError::DatabaseMissing { files: 1, .. }), "{refused:?}");
        }
        assert!(lab.engine.files().contains(&FilesId::from(&id)), "nothing was touched");
    }
    assert_eq!(Node::count_recorded_files(data.path()).await.expect("a number"), 0);

    // Accepted: everything can be recovered.
    let node = open(OnMissing::Accept).await.expect("it was accepted");
    assert_eq!(node.recover(id.as_str()).await.expect("it is back"), Recovered::Sandbox(id.clone()));
    node.close(Closing::Keep).await.expect("it closes");
    drop(node);

    // The old database again: it names the same sandbox, so nothing is missing.
    assert_eq!(Node::count_recorded_files(old.path()).await.expect("a number"), 1);
    let node = open_at(&lab, old.path(), OnMissing::Refuse).await.expect("it opens");
    node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect("it resumes");
    assert!(node.recoverable().await.expect("a list").is_empty());
}

async fn open_at(lab: &Lab, data: &Path, on_missing: OnMissing) -> Result<Arc<Node>, OpenError> {
    Node::open(data, lab.engine.clone(), lab.config.clone(), on_missing).await
}

#[tokio::test(start_paused = true)]
async fn an_older_database_loses_nothing() {
    let mut lab = Lab::new();
    let node = lab.open().await;
    let old = paused(&node, PauseMode::Filesystem).await;
    let yesterday = MemoryRecords::default();
    for record in lab.records.all().await.expect("records") {
        yesterday.insert(&record, None).await.expect("a copy");
    }
    let new = paused(&node, PauseMode::Full).await;
    node.kill(&old).await.expect("it is killed");
    node.close(Closing::Keep).await.expect("it closes");

    lab.records = Arc::new(yesterday);
    let node = lab.open().await;
    let error = node.connect(&old, 60 * SECOND, PauseMode::Full).await.expect_err("its files went with it");
    assert_missing(&error, &FilesOwner::Sandbox(old));
    node.recover(new.as_str()).await.expect("it is back");
    node.connect(&new, 60 * SECOND, PauseMode::Full).await.expect("it resumes");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_leaps_ends_no_sandbox_early() {
    let lab = Lab::new();
    let node = lab.open().await;
    let killed = node.create(new_sandbox(), None).await.expect("it is made").id;
    let frozen = node.create(pausing(PauseMode::Full), None).await.expect("it is made").id;
    for by in [2 * HOUR, -5 * HOUR] {
        tokio::time::sleep(10 * SECOND).await;
        lab.clock.jump(by);
        tokio::time::sleep(10 * SECOND).await;
        for id in [&killed, &frozen] {
            let seen = node.get(id).expect("it lives");
            assert_eq!(seen.standing, PersistedState::Running);
            let left = seen.record.end_at.duration_since(node.now()).as_secs();
            assert!((15..=60).contains(&left), "what is shown follows the clock: {left} s");
            let lease = u64::try_from(seen.record.end_at.as_millisecond()).expect("after 1970");
            eventually_async("the guest is told", SOON, async || {
                lab.leases_of(id.as_str()).last() == Some(&Some(lease))
            })
            .await;
        }
    }
    tokio::time::sleep(25 * SECOND).await;
    eventually_async("the lease ends by the time that has passed", SOON, async || node.get(&killed).is_none()).await;
    let standing = || node.get(&frozen).map(|seen| seen.standing);
    eventually_async("the other is paused", SOON, async || standing() == Some(PersistedState::Paused(PauseMode::Full)))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_wrong_at_start_ends_nothing_for_good() {
    let lab = Lab::new();
    let node = lab.open().await;
    let id = node.create(new_sandbox(), None).await.expect("it is made").id;
    node.close(Closing::Keep).await.expect("it closes");
    lab.clock.jump(24 * HOUR);
    let node = lab.open().await;
    assert!(node.get(&id).is_none(), "by the clock its lease has ended");
    lab.clock.jump(-24 * HOUR);
    node.recover(id.as_str()).await.expect("its files are in the trash");
    node.connect(&id, 60 * SECOND, PauseMode::Full).await.expect("it resumes");

    // A clock that is behind ends no sandbox.
    node.close(Closing::Keep).await.expect("it closes");
    lab.clock.jump(-24 * HOUR);
    let node = lab.open().await;
    assert_eq!(node.get(&id).map(|seen| seen.standing), Some(PersistedState::Running));
}
