//! Snapshots that something has happened to give way to the one before, and a full disk leaves the old files.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sandbar_workspace::snapshot::{
    Flaw, Objects, ProjectId, RestoreError, Saved, SnapshotCondition, SnapshotOptions, Snapshots, Stamp, Which,
};
use sdk::Sandbox;
use tempfile::TempDir;
use testing::Server;

use crate::support::{assert_same, project, run, snapshots, tree};

/// Two snapshots of a project, the first's files in the sandbox.
struct Two {
    _server: std::sync::Arc<Server>,
    directory: TempDir,
    snapshots: Snapshots,
    id: ProjectId,
    sandbox: Sandbox,
    first: Saved,
    second: Saved,
    first_tree: Vec<String>,
}

impl Two {
    async fn new() -> Self {
        let server = Server::shared(&[]);
        let sandbox = server.sandbox().await;
        let directory = tempfile::tempdir().expect("a directory");
        let snapshots = snapshots(Objects::disk(directory.path()).expect("a store"));
        let id = project("damaged");
        run(&sandbox, "mkdir p; echo first >p/file; head -c 100000 /dev/urandom >p/random").await;
        let first = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await.expect("a snapshot");
        let first_tree = tree(&sandbox).await;
        run(&sandbox, "echo second >p/file; ln -s file p/link").await;
        let second = snapshots.save(&sandbox, &id, &SnapshotOptions::default()).await.expect("a snapshot");
        run(&sandbox, "echo present >p/file").await;
        Self { _server: server, directory, snapshots, id, sandbox, first, second, first_tree }
    }

    fn object(&self, stamp: Stamp, end: &str) -> PathBuf {
        self.directory.path().join(format!("projects/{}/snapshots/{stamp}.{end}", self.id))
    }

    fn archive(&self) -> PathBuf {
        self.object(self.second.stamp, "tar.gz")
    }

    fn manifest(&self) -> PathBuf {
        self.object(self.second.stamp, "manifest.json")
    }

    /// Writes the second's manifest as programs did before it had a line per entry and a digest of them: one JSON value.
    fn make_manifest_old(&self) {
        let text = std::fs::read_to_string(self.manifest()).expect("it is there");
        let mut lines = text.lines();
        let head = lines.next().expect("a head").replace("\"format\":2,", "\"format\":1,");
        let (head, _) = head.split_once(",\"listing\":").expect("it tells of its entries");
        let entries = lines.collect::<Vec<_>>().join(",");
        std::fs::write(self.manifest(), format!("{head},\"entries\":[{entries}]}}")).expect("our own directory");
    }

    /// The newest is no good, for this reason, and the first comes back.
    async fn falls_back(&self, expected: impl Fn(&Flaw) -> bool) {
        let restored = self.snapshots.restore(&self.sandbox, &self.id, Which::Newest).await.expect("a restore");
        assert_eq!(restored.stamp, self.first.stamp);
        let [(stamp, flaw)] = &restored.skipped_generations[..] else { panic!("{restored:?}") };
        assert!(*stamp == self.second.stamp && expected(flaw), "{restored:?}");
        assert_same(&tree(&self.sandbox).await, &self.first_tree);

        let exactly = self.snapshots.restore(&self.sandbox, &self.id, Which::Exactly(*stamp)).await;
        match &exactly {
            Err(RestoreError::Damaged { flaw, .. }) => assert!(expected(flaw), "{exactly:?}"),
            Err(RestoreError::NotThere { .. }) => assert!(expected(&Flaw::NoManifest), "{exactly:?}"),
            other => panic!("{other:?}"),
        }
        assert_same(&tree(&self.sandbox).await, &self.first_tree);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupted_archive() {
    let two = Two::new().await;
    let mut bytes = std::fs::read(two.archive()).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    let mode = std::fs::metadata(two.archive()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others do not read it");
    std::fs::write(two.archive(), bytes).expect("our own directory");

    // Nobody has read it since, and then somebody has.
    let condition = async || two.snapshots.list(&two.id).await.expect("a list").remove(1).condition;
    let verified = |condition: &SnapshotCondition| matches!(condition, SnapshotCondition::Whole { verified: true, .. });
    let first = two.snapshots.list(&two.id).await.expect("a list").remove(0).condition;
    assert!(verified(&first) && !verified(&condition().await), "{first:?}");
    let verify =
        async |stamp| two.snapshots.verify(&two.id, stamp).await.expect("it can be read").expect("it is there");
    assert!(matches!(verify(two.second.stamp).await, SnapshotCondition::Damaged { .. }));
    assert!(verified(&verify(two.first.stamp).await));
    std::fs::remove_dir_all(two.directory.path().join(format!("projects/{}/checks", two.id))).expect("it is there");
    assert!(matches!(condition().await, SnapshotCondition::Whole { verified: false, .. }), "nobody knows");
    two.falls_back(|flaw| matches!(flaw, Flaw::ArchiveDigest { .. })).await;
    assert!(matches!(condition().await, SnapshotCondition::Damaged { .. }), "a restore remembers what it found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_archive() {
    let two = Two::new().await;
    let bytes = std::fs::read(two.archive()).expect("it is there");
    std::fs::write(two.archive(), &bytes[..bytes.len() - 100]).expect("our own directory");
    let listed = two.snapshots.list(&two.id).await.expect("a list");
    assert!(matches!(listed[1].condition, SnapshotCondition::Damaged { .. }), "{listed:?}");
    two.falls_back(|flaw| matches!(flaw, Flaw::ArchiveSize { .. })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_archive() {
    let two = Two::new().await;
    std::fs::remove_file(two.archive()).expect("it is there");
    two.falls_back(|flaw| *flaw == Flaw::ArchiveMissing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_manifest() {
    let two = Two::new().await;
    std::fs::remove_file(two.manifest()).expect("it is there");
    let listed = two.snapshots.list(&two.id).await.expect("a list");
    assert_eq!(listed.iter().map(|listed| listed.stamp).collect::<Vec<_>>(), [two.first.stamp], "it does not exist");
    two.falls_back(|flaw| *flaw == Flaw::NoManifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_is_none() {
    let two = Two::new().await;
    std::fs::write(two.manifest(), b"{\"format\": 1}").expect("our own directory");
    two.falls_back(|flaw| matches!(flaw, Flaw::ManifestUnreadable(_))).await;
}

/// The archive is as the manifest says, and a file in it is not: as if the sandbox's disk had changed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_comes_back_wrong() {
    let two = Two::new().await;
    two.make_manifest_old();
    let text = std::fs::read_to_string(two.manifest()).expect("it is there");
    let digest = sandbar_workspace::snapshot::Digest::of(b"second\n").to_string();
    let other = sandbar_workspace::snapshot::Digest::of(b"other\n").to_string();
    assert_eq!(text.matches(&digest).count(), 1);
    std::fs::write(two.manifest(), text.replace(&digest, &other)).expect("our own directory");
    two.falls_back(|flaw| matches!(flaw, Flaw::Mismatch { path, .. } if path.text() == "p/file")).await;

    std::fs::write(two.manifest(), text.replace(r#""target":"file""#, r#""target":"elif""#))
        .expect("our own directory");
    two.falls_back(|flaw| matches!(flaw, Flaw::Mismatch { path, .. } if path.text() == "p/link")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_an_older_program_and_one_that_is_damaged() {
    let two = Two::new().await;
    let lines = std::fs::read(two.manifest()).expect("it is there");
    two.make_manifest_old();
    let listed = two.snapshots.list(&two.id).await.expect("a list");
    assert!(matches!(listed[1].condition, SnapshotCondition::Whole { verified: true, .. }), "{listed:?}");
    let restored = two.snapshots.restore(&two.sandbox, &two.id, Which::Newest).await.expect("a restore");
    assert_eq!((restored.stamp, restored.skipped_generations), (two.second.stamp, Vec::new()));
    assert_eq!(run(&two.sandbox, "cat p/file p/link").await, "second\nsecond\n");
    let saved = two.snapshots.save(&two.sandbox, &two.id, &SnapshotOptions::default()).await.expect("a snapshot");
    assert!(saved.unchanged && saved.stamp == two.second.stamp, "the same files are seen in either form: {saved:?}");

    let end = lines.len() - 3;
    for damaged in [lines[..end].to_vec(), [&lines[..end], b"x", &lines[end + 1..]].concat()] {
        std::fs::write(two.manifest(), damaged).expect("our own directory");
        let listed = two.snapshots.list(&two.id).await.expect("a list");
        assert!(matches!(listed[1].condition, SnapshotCondition::Damaged { .. }), "{listed:?}");
        two.falls_back(|flaw| matches!(flaw, Flaw::ManifestUnreadable(_))).await;
    }
}

/// What was sent is as it must be, and what is on the sandbox's disk is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_went_wrong() {
    let two = Two::new().await;
    let wrapper = r#"cat >/usr/local/bin/tar <<'END' && chmod +x /usr/local/bin/tar
#!/bin/bash
/usr/bin/tar "$@"
status=$?
if [[ " $* " == *" --extract "* && ! -e /var/once ]]; then
  touch /var/once
  printf x | dd of=p/random conv=notrunc bs=1 seek=5000 status=none
fi
exit $status
END"#;
    let made = two.sandbox.commands().run(sdk::Command::new(wrapper).user("root")).await.expect("it runs");
    assert!(made.success(), "{made:?}");
    let restored = two.snapshots.restore(&two.sandbox, &two.id, Which::Newest).await.expect("a restore");
    assert_eq!(restored.stamp, two.first.stamp);
    let [(stamp, Flaw::Mismatch { path, what })] = &restored.skipped_generations[..] else { panic!("{restored:?}") };
    assert_eq!((*stamp, &*path.text(), *what), (two.second.stamp, "p/random", "its content differs"));
    assert_same(&tree(&two.sandbox).await, &two.first_tree);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_the_files_as_they_were() {
    let server = Server::shared(&[]);
    let create = sdk::Create::template("base").disk_size_mb(100);
    let client = server.client();
    let (large, small) = tokio::join!(server.sandbox(), client.create(create));
    let small = small.expect("a sandbox");
    let snapshots = snapshots(Objects::memory());
    let id = project("full");
    run(&large, "mkdir /srv/w && head -c 20000000 /dev/urandom >/srv/w/big").await;
    run(&small, "mkdir /srv/w && echo old >/srv/w/file && head -c 85000000 /dev/zero >/srv/filler").await;
    let options = SnapshotOptions { root: "/srv/w".to_owned(), ..SnapshotOptions::default() };
    let saved = snapshots.save(&large, &id, &options).await.expect("a snapshot");

    let failed = snapshots.restore(&small, &id, Which::Newest).await;
    assert!(matches!(failed, Err(RestoreError::NoSpace { stamp, .. }) if stamp == saved.stamp), "{failed:?}");
    assert_eq!(run(&small, "ls -A /srv/w; cat /srv/w/file").await, "file\nold\n", "and nothing is left behind");

    run(&small, "rm /srv/filler").await;
    snapshots.restore(&small, &id, Which::Newest).await.expect("there is room now");
    let digest = "cd /srv/w && ls -A && sha256sum big";
    assert_eq!(run(&small, digest).await, run(&large, digest).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_is_not_counted_among_those_that_are_kept() {
    let two = Two::new().await;
    std::fs::write(two.archive(), "short").expect("our own directory");
    let options = SnapshotOptions::default();
    let save = async || {
        // Equal files make no other snapshot.
        run(&two.sandbox, "date +%s%N >changed").await;
        two.snapshots.save(&two.sandbox, &two.id, &options).await
    };
    let third = save().await.expect("a snapshot");
    let pruned = two.snapshots.prune(&two.id, 2).await.expect("a prune");
    assert_eq!(pruned.snapshots, [], "the first is one of two that can be restored");
    save().await.expect("a snapshot");
    let pruned = two.snapshots.prune(&two.id, 2).await.expect("a prune");
    assert_eq!(pruned.snapshots, [two.first.stamp, two.second.stamp]);
    let oldest = two.snapshots.list(&two.id).await.expect("a list").first().map(|listed| listed.stamp);
    assert_eq!(oldest, Some(third.stamp));
}
