//! Damaged checkpoints fall back to the one before, and a full disk keeps the old files.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use sandbar_checkpoint::{
    CheckpointCondition, CheckpointOptions, Checkpoints, Flaw, Objects, ProjectId, RestoreError, SavedCheckpoint,
    Stamp, Which,
};
use sdk::Sandbox;
use tempfile::TempDir;
use testing::Server;

use crate::support::{assert_same, checkpoints, port, project, run, tree};

/// Two checkpoints of a project, with newer files in the sandbox.
struct Two {
    _server: std::sync::Arc<Server>,
    directory: TempDir,
    checkpoints: Checkpoints,
    id: ProjectId,
    sandbox: Sandbox,
    first: SavedCheckpoint,
    second: SavedCheckpoint,
    first_tree: Vec<String>,
}

impl Two {
    async fn new() -> Self {
        let server = Server::shared(&[]);
        let sandbox = server.sandbox().await;
        let directory = tempfile::tempdir().expect("a directory");
        let checkpoints = checkpoints(Objects::disk(directory.path()).expect("a store"));
        let id = project("damaged");
        run(&sandbox, "mkdir p; echo first >p/file; head -c 100000 /dev/urandom >p/random").await;
        let first = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("a snapshot");
        let first_tree = tree(&sandbox).await;
        run(&sandbox, "echo second >p/file; ln -s file p/link").await;
        let second = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("a snapshot");
        run(&sandbox, "echo present >p/file").await;
        Self { _server: server, directory, checkpoints, id, sandbox, first, second, first_tree }
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

    /// Rewrites the second manifest in the first format: one JSON value without a digest of its
    /// entries.
    fn make_manifest_old(&self) {
        let text = std::fs::read_to_string(self.manifest()).expect("it is there");
        let mut lines = text.lines();
        let head = lines.next().expect("a head").replace("\"format\":2,", "\"format\":1,");
        let (head, _) = head.split_once(",\"listing\":").expect("it tells of its entries");
        let entries = lines.collect::<Vec<_>>().join(",");
        std::fs::write(self.manifest(), format!("{head},\"entries\":[{entries}]}}")).expect("our own directory");
    }

    /// The newest checkpoint has this flaw, and the first is restored.
    async fn assert_falls_back(&self, expected: impl Fn(&Flaw) -> bool) {
        let restored =
            self.checkpoints.restore(&port(&self.sandbox), &self.id, Which::Newest).await.expect("a restore");
        assert_eq!(restored.stamp, self.first.stamp);
        let [(stamp, flaw)] = &restored.skipped_generations[..] else { panic!("{restored:?}") };
        assert!(*stamp == self.second.stamp && expected(flaw), "{restored:?}");
        assert_same(&tree(&self.sandbox).await, &self.first_tree);

        let exactly = self.checkpoints.restore(&port(&self.sandbox), &self.id, Which::Exactly(*stamp)).await;
        match &exactly {
            Err(RestoreError::Damaged { flaw, .. }) => assert!(expected(flaw), "{exactly:?}"),
            Err(RestoreError::NotThere { .. }) => assert!(expected(&Flaw::NoManifest), "{exactly:?}"),
            other => panic!("{other:?}"),
        }
        assert_same(&tree(&self.sandbox).await, &self.first_tree);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupted_archive_falls_back() {
    let two = Two::new().await;
    let mut bytes = std::fs::read(two.archive()).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    let mode = std::fs::metadata(two.archive()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others do not read it");
    std::fs::write(two.archive(), bytes).expect("our own directory");

    // It is unverified until it is read again.
    let condition = async || two.checkpoints.list(&two.id).await.expect("a list").remove(1).condition;
    let verified =
        |condition: &CheckpointCondition| matches!(condition, CheckpointCondition::Whole { verified: true, .. });
    let first = two.checkpoints.list(&two.id).await.expect("a list").remove(0).condition;
    assert!(verified(&first) && !verified(&condition().await), "{first:?}");
    let verify =
        async |stamp| two.checkpoints.verify(&two.id, stamp).await.expect("it can be read").expect("it is there");
    assert!(matches!(verify(two.second.stamp).await, CheckpointCondition::Damaged { .. }));
    assert!(verified(&verify(two.first.stamp).await));
    std::fs::remove_dir_all(two.directory.path().join(format!("projects/{}/checks", two.id))).expect("it is there");
    assert!(matches!(condition().await, CheckpointCondition::Whole { verified: false, .. }), "unverified");
    two.assert_falls_back(|flaw| matches!(flaw, Flaw::ArchiveDigest { .. })).await;
    assert!(matches!(condition().await, CheckpointCondition::Damaged { .. }), "a restore records the flaw");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_archive_falls_back() {
    let two = Two::new().await;
    let bytes = std::fs::read(two.archive()).expect("it is there");
    std::fs::write(two.archive(), &bytes[..bytes.len() - 100]).expect("our own directory");
    let listed = two.checkpoints.list(&two.id).await.expect("a list");
    assert!(matches!(listed[1].condition, CheckpointCondition::Damaged { .. }), "{listed:?}");
    two.assert_falls_back(|flaw| matches!(flaw, Flaw::ArchiveSize { .. })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_archive_falls_back() {
    let two = Two::new().await;
    std::fs::remove_file(two.archive()).expect("it is there");
    two.assert_falls_back(|flaw| *flaw == Flaw::ArchiveMissing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_manifest_falls_back() {
    let two = Two::new().await;
    std::fs::remove_file(two.manifest()).expect("it is there");
    let listed = two.checkpoints.list(&two.id).await.expect("a list");
    assert_eq!(listed.iter().map(|listed| listed.stamp).collect::<Vec<_>>(), [two.first.stamp], "it does not exist");
    two.assert_falls_back(|flaw| *flaw == Flaw::NoManifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_manifest_falls_back() {
    let two = Two::new().await;
    std::fs::write(two.manifest(), b"{\"format\": 1}").expect("our own directory");
    two.assert_falls_back(|flaw| matches!(flaw, Flaw::ManifestUnreadable(_))).await;
}

/// The archive matches its manifest, but a file in it does not, as if the sandbox's disk had
/// changed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_mismatching_file_falls_back() {
    let two = Two::new().await;
    two.make_manifest_old();
    let text = std::fs::read_to_string(two.manifest()).expect("it is there");
    let digest = sandbar_checkpoint::Digest::hash(b"second\n").to_string();
    let other = sandbar_checkpoint::Digest::hash(b"other\n").to_string();
    assert_eq!(text.matches(&digest).count(), 1);
    std::fs::write(two.manifest(), text.replace(&digest, &other)).expect("our own directory");
    two.assert_falls_back(|flaw| matches!(flaw, Flaw::Mismatch { path, .. } if path.text() == "p/file")).await;

    std::fs::write(two.manifest(), text.replace(r#""target":"file""#, r#""target":"elif""#))
        .expect("our own directory");
    two.assert_falls_back(|flaw| matches!(flaw, Flaw::Mismatch { path, .. } if path.text() == "p/link")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_the_first_format_is_restored() {
    let two = Two::new().await;
    let lines = std::fs::read(two.manifest()).expect("it is there");
    two.make_manifest_old();
    let listed = two.checkpoints.list(&two.id).await.expect("a list");
    assert!(matches!(listed[1].condition, CheckpointCondition::Whole { verified: true, .. }), "{listed:?}");
    let restored = two.checkpoints.restore(&port(&two.sandbox), &two.id, Which::Newest).await.expect("a restore");
    assert_eq!((restored.stamp, restored.skipped_generations), (two.second.stamp, Vec::new()));
    assert_eq!(run(&two.sandbox, "cat p/file p/link").await, "second\nsecond\n");
    let saved =
        two.checkpoints.save(&port(&two.sandbox), &two.id, &CheckpointOptions::default()).await.expect("a snapshot");
    assert!(saved.unchanged && saved.stamp == two.second.stamp, "the same files are seen in either form: {saved:?}");

    let end = lines.len() - 3;
    for damaged in [lines[..end].to_vec(), [&lines[..end], b"x", &lines[end + 1..]].concat()] {
        std::fs::write(two.manifest(), damaged).expect("our own directory");
        let listed = two.checkpoints.list(&two.id).await.expect("a list");
        assert!(matches!(listed[1].condition, CheckpointCondition::Damaged { .. }), "{listed:?}");
        two.assert_falls_back(|flaw| matches!(flaw, Flaw::ManifestUnreadable(_))).await;
    }
}

/// The archive is sent intact, but the sandbox's disk has other bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_corrupted_write_falls_back() {
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
    let restored = two.checkpoints.restore(&port(&two.sandbox), &two.id, Which::Newest).await.expect("a restore");
    assert_eq!(restored.stamp, two.first.stamp);
    let [(stamp, Flaw::Mismatch { path, what })] = &restored.skipped_generations[..] else { panic!("{restored:?}") };
    assert_eq!((*stamp, &*path.text(), *what), (two.second.stamp, "p/random", "its content differs"));
    assert_same(&tree(&two.sandbox).await, &two.first_tree);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_the_old_files() {
    testing::needs_root!("without a pool there is no limit of the disk");
    let server = Server::shared(&[]);
    let create = sdk::Create::template("base").disk_size_mb(100);
    let client = server.client();
    let (large, small) = tokio::join!(server.sandbox(), client.create(create));
    let small = small.expect("a sandbox");
    let checkpoints = checkpoints(Objects::memory());
    let id = project("full");
    run(&large, "mkdir /srv/w && head -c 20000000 /dev/urandom >/srv/w/big").await;
    run(&small, "mkdir /srv/w && echo old >/srv/w/file && head -c 85000000 /dev/zero >/srv/filler").await;
    let options = CheckpointOptions { root: "/srv/w".to_owned(), ..CheckpointOptions::default() };
    let saved = checkpoints.save(&port(&large), &id, &options).await.expect("a snapshot");

    let failed = checkpoints.restore(&port(&small), &id, Which::Newest).await;
    assert!(matches!(failed, Err(RestoreError::NoSpace { stamp, .. }) if stamp == saved.stamp), "{failed:?}");
    assert_eq!(run(&small, "ls -A /srv/w; cat /srv/w/file").await, "file\nold\n", "and nothing is left behind");

    run(&small, "rm /srv/filler").await;
    checkpoints.restore(&port(&small), &id, Which::Newest).await.expect("there is room now");
    let digest = "cd /srv/w && ls -A && sha256sum big";
    assert_eq!(run(&small, digest).await, run(&large, digest).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_checkpoints_do_not_count_when_pruning() {
    let two = Two::new().await;
    std::fs::write(two.archive(), "short").expect("our own directory");
    let options = CheckpointOptions::default();
    let save = async || {
        // Unchanged files would store no other checkpoint.
        run(&two.sandbox, "date +%s%N >changed").await;
        two.checkpoints.save(&port(&two.sandbox), &two.id, &options).await
    };
    let third = save().await.expect("a snapshot");
    let pruned = two.checkpoints.prune(&two.id, 2).await.expect("a prune");
    assert_eq!(pruned.checkpoints, [], "the first is one of two that can be restored");
    save().await.expect("a snapshot");
    let pruned = two.checkpoints.prune(&two.id, 2).await.expect("a prune");
    assert_eq!(pruned.checkpoints, [two.first.stamp, two.second.stamp]);
    let oldest = two.checkpoints.list(&two.id).await.expect("a list").first().map(|listed| listed.stamp);
    assert_eq!(oldest, Some(third.stamp));
}
