//! Snapshots and forks with an engine in memory: which files are copied, and what is left after
//! failures.

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{Lab, new_sandbox};
use engine::EngineError;
use sandbar_node::lifecycle::PauseMode;
use sandbar_node::template::{ChangeError, Reference, TemplateError};
use sandbar_node::{
    FilesId, NewSandbox, Node, PersistedState, SandboxError, SandboxId, SnapshotError, SnapshotQuery, new_sandbox_id,
};

const SECOND: Duration = Duration::from_secs(1);

async fn create(node: &Node) -> SandboxId {
    node.create(new_sandbox(), None).await.expect("it is made").id
}

fn named(name: &str) -> SnapshotQuery {
    SnapshotQuery { of: None, name: Some(Reference::parse(name).expect("a name")), limit: 100, after: None }
}

fn all(limit: usize) -> SnapshotQuery {
    SnapshotQuery { of: None, name: None, limit, after: None }
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_what_new_sandboxes_begin_with() {
    let lab = Lab::new();
    let node = lab.open().await;
    let source = create(&node).await;
    let snapshot = node.snapshot(&source, None).await.expect("it is taken");
    assert!(snapshot.id.ends_with(":default") && snapshot.names.is_empty(), "{snapshot:?}");
    assert!(!lab.engine.is_frozen(&source));
    assert_eq!(node.get(&source).map(|seen| seen.standing), Some(PersistedState::Running));
    let (from, files) = lab.engine.copies().pop().expect("a copy");
    assert_eq!(from, FilesId::from(&source));
    let log = node.log(&source).await.expect("a log");
    assert!(log.iter().any(|entry| entry.message.contains("memory and processes are not part of it")), "{log:?}");

    let resolved = node.resolve_template(&snapshot.id).expect("it is a template");
    assert_eq!(resolved.files, Some(files.clone()));
    let child = node.create(NewSandbox { from: resolved, ..new_sandbox() }, None).await.expect("it is made");
    assert_eq!(lab.engine.copies().pop(), Some((files.clone(), FilesId::from(&child.id))));

    let error = node.delete_template(&snapshot.id).await.expect_err("it is used");
    assert!(matches!(error, ChangeError::InUse { sandboxes: 1, .. }), "{error:?}");
    node.kill(&child.id).await.expect("it ends");
    node.delete_template(&snapshot.id).await.expect("it goes");
    assert!(!lab.engine.files().contains(&files));
    let error = node.delete_template(&snapshot.id).await.expect_err("it is gone");
    assert!(matches!(error, ChangeError::Template(TemplateError::NotFound(_))), "{error:?}");
    assert!(node.resolve_template(&snapshot.id).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_name_has_several_states_and_its_tags_keep_them() {
    let lab = Lab::new();
    let node = lab.open().await;
    let (one, other) = (create(&node).await, create(&node).await);
    let first = node.snapshot(&one, Some("Work")).await.expect("it is taken");
    assert_eq!((first.id.as_str(), first.names.as_slice()), ("local/work:default", &["local/work".to_owned()][..]));
    let files = |reference: &str| node.resolve_template(reference).expect("it exists").files.expect("it has files");
    let before = files("work");
    node.assign_tags("work", &["kept".to_owned()]).await.expect("it is tagged");
    assert_eq!(node.snapshot(&other, Some("local/work")).await.expect("it is taken").id, "local/work:default");
    assert_eq!(files("work:kept"), before);
    assert_ne!(files("work"), before);
    assert_eq!(node.template("work").expect("it exists").builds.len(), 2);
    node.remove_tags("work", &["kept".to_owned()]).await.expect("it is untagged");
    assert!(!lab.engine.files().contains(&before), "nothing leads to the first state any more");
    assert_eq!(node.snapshot(&other, Some("work:v2")).await.expect("it is taken").id, "local/work:v2");

    assert_eq!(node.snapshots(&named("work")).snapshots.len(), 1);
    assert_eq!(node.snapshots(&named("nothing")).snapshots.len(), 0);
    let by = |id: &SandboxId| SnapshotQuery { of: Some(id.clone()), ..all(100) };
    assert_eq!(node.snapshots(&by(&one)).snapshots.len(), 1);
    assert_eq!(node.snapshots(&by(&new_sandbox_id())).snapshots.len(), 0);
    for bad in ["a b", "../x", "base", "other/work"] {
        let refused = node.snapshot(&one, Some(bad)).await;
        assert!(matches!(refused, Err(SnapshotError::Name(_) | SnapshotError::Taken(_))), "{bad}: {refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_of_snapshots_have_pages() {
    let lab = Lab::new();
    let node = lab.open().await;
    let source = create(&node).await;
    let mut taken = Vec::new();
    for _ in 0..5 {
        tokio::time::sleep(SECOND).await;
        taken.push(node.snapshot(&source, None).await.expect("it is taken"));
    }
    taken.reverse();
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = node.snapshots(&SnapshotQuery { after, ..all(2) });
        assert!(page.snapshots.len() <= 2);
        found.extend(page.snapshots);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, taken);
}

#[tokio::test(start_paused = true)]
async fn forks_are_of_one_moment_and_have_lives_of_their_own() {
    let lab = Lab::new();
    let node = lab.open().await;
    let source = create(&node).await;
    for paused in [None, Some(PauseMode::Full), Some(PauseMode::Filesystem)] {
        if let Some(kept) = paused {
            node.pause(&source, kept, false).await.expect("it pauses");
        }
        let before = node.get(&source).expect("it is there").record;
        let copies = lab.engine.copies().len();
        let children = node.fork(&source, 600 * SECOND, 3).await.expect("it forks");
        let children: Vec<_> = children.into_iter().map(|child| child.expect("it starts")).collect();
        let made = lab.engine.copies().split_off(copies);
        let (first, rest) = made.split_first().expect("copies");
        assert_eq!(first.0, FilesId::from(&source));
        assert!(rest.len() == 2 && rest.iter().all(|(from, _)| *from == first.1), "{made:?}: one look at the source");
        let tokens: HashSet<_> =
            children.iter().map(|child| child.access_token.clone().map(|t| t.reveal().to_owned())).collect();
        assert_eq!(tokens.len(), 3);
        assert_eq!(*node.get(&source).expect("it is there").record, *before, "the source stays as it is");
        for child in &children {
            let record = node.get(&child.id).expect("it runs").record;
            assert_eq!((record.lease, &record.spec.metadata), (600 * SECOND, &before.spec.metadata));
            node.kill(&child.id).await.expect("it ends");
        }
        if paused.is_some() {
            node.connect(&source, 600 * SECOND, PauseMode::Full).await.expect("it resumes");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn children_that_do_not_start_leave_nothing() {
    let mut lab = Lab::new();
    lab.config.max_sandboxes = 3;
    let node = lab.open().await;
    let source = create(&node).await;
    let children = node.fork(&source, 60 * SECOND, 4).await.expect("it forks");
    let started: Vec<_> = children.iter().filter_map(|child| child.as_ref().ok()).collect();
    assert_eq!(started.len(), 2, "there is room for two more");
    assert!(
        children.iter().flat_map(|child| child.as_ref().err()).all(|error| matches!(error, SandboxError::Full { .. }))
    );
    let expected: HashSet<FilesId> =
        started.iter().map(|child| FilesId::from(&child.id)).chain([FilesId::from(&source)]).collect();
    assert_eq!(lab.engine.files(), expected);
    for child in started {
        node.kill(&child.id).await.expect("it ends");
    }
    lab.engine.refuse_boots(Some(|| EngineError::NoSpace("df -h /data".to_owned())));
    let children = node.fork(&source, 60 * SECOND, 2).await.expect("the call is answered");
    assert!(children.iter().all(Result::is_err));
    assert_eq!(lab.engine.files(), HashSet::from([FilesId::from(&source)]));
    let missing = node.fork(&new_sandbox_id(), SECOND, 1).await;
    assert!(matches!(missing, Err(SandboxError::NotFound(_))));
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_snapshots_and_removes_incomplete_ones() {
    let lab = Lab::new();
    let node = lab.open().await;
    let source = create(&node).await;
    let snapshot = node.snapshot(&source, Some("kept")).await.expect("it is taken");
    let files = node.resolve_template(&snapshot.id).expect("it exists").files.expect("it has files");
    // As after a kill between the copy and its record.
    let half_made = lab.engine.strand_files();
    let next = lab.open().await;
    assert!(!lab.engine.files().contains(&half_made));
    assert_eq!(next.resolve_template("kept").expect("it exists").files, Some(files.clone()));
    assert!(lab.engine.files().contains(&files));
    assert_eq!(next.snapshots(&all(10)).snapshots, [snapshot]);
}
