//! Kills the process at every fault point. Earlier checkpoints are complete, no partial one exists,
//! the next save succeeds and cleans up, and a tree in a sandbox is the old one or the new one.
//!
//! The test runs itself as a child process, which does one operation and stops at one point; there
//! it gets SIGKILL.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use futures::FutureExt;
use sandbar_checkpoint::faults::{self, CheckpointPoint};
use sandbar_checkpoint::{CheckpointCondition, CheckpointOptions, Checkpoints, Objects, ProjectId, Stamp, Which};
use sdk::Sandbox;
use testing::{Server, kill_at, wait_to_be_killed};

use crate::support::{assert_same, checkpoints, port, project, run, tree};

const PROJECT: &str = "killed";
/// Retained while the process is killed repeatedly.
const KEEP: usize = 3;

/// The operation of the child process, in environment variables.
const WORK: [&str; 6] = ["STEP_POINT", "STEP_WORK", "STEP_SERVER", "STEP_KEY", "STEP_SANDBOX", "STEP_STORE"];

#[test]
fn a_kill_at_any_point_loses_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match WORK.map(|name| std::env::var(name).ok()) {
        [Some(point), Some(work), Some(server), Some(key), Some(sandbox), Some(store)] => {
            runtime.block_on(be_killed(&point, &work, &server, &key, &sandbox, &store));
        }
        _ => runtime.block_on(kill_everywhere()),
    }
}

/// The script of a killed client may get its first time slice after that of the next client.
#[test]
fn a_late_script_leaves_a_newer_restore() {
    let directory = tempfile::tempdir().expect("a directory");
    let stage = directory.path().join(".sandbar-restore.newer/new");
    std::fs::create_dir_all(&stage).expect("a stage");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scripts/unpack.sh");
    let unpack = |before: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("{before} exec bash \"$0\" \"$@\""), script]).arg(directory.path());
        bash.args([".sandbar-restore.late", "0", "0", "0", "script"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        bash.spawn().expect("bash starts")
    };
    let mut late = unpack("read -r;");
    let mut newer = Command::new("bash");
    newer.args(["-c", "read -r; :", "script", ".sandbar-restore.newer"]).stdin(Stdio::piped());
    let mut newer = newer.spawn().expect("bash starts");

    late.stdin.take().expect("it is piped").write_all(b"\n").expect("bash reads");
    let refused = late.wait_with_output().expect("it ends");
    assert_eq!(refused.status.code(), Some(14), "{refused:?}");
    assert!(stage.exists(), "the newer restore continues");

    drop(newer.stdin.take());
    newer.wait().expect("it ends");
    let next = unpack("").wait_with_output().expect("it ends");
    assert!(!stage.exists(), "leftovers are removed: {next:?}");
}

/// The child: works until the point, and waits there to be killed.
async fn be_killed(point: &str, work: &str, server: &str, key: &str, sandbox: &str, store: &str) {
    let sandbox = sandbox.parse().expect("an id");
    let client = testing::client(server, key).build().expect("valid options");
    let sandbox = client.connect(&sandbox, sdk::Connect::default()).await.expect("the sandbox");
    let (checkpoints, id) = (open(Path::new(store)), project(PROJECT));
    let at = point.to_owned();
    let hook: faults::Hook = Arc::new(move |here| {
        let is_here = here.name() == at;
        async move {
            if is_here {
                wait_to_be_killed().await;
            }
        }
        .boxed()
    });
    let done = faults::scope(hook, async {
        match work {
            "save" => {
                drop(checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("a snapshot"));
            }
            "prune" => drop(checkpoints.prune(&id, 1).await.expect("a prune")),
            "restore" => drop(checkpoints.restore(&port(&sandbox), &id, Which::Newest).await.expect("a restore")),
            other => panic!("no such work: {other}"),
        }
    });
    done.await;
}

fn open(store: &Path) -> Checkpoints {
    let settings = sandbar_checkpoint::CheckpointSettings { keep: KEEP, ..Default::default() };
    checkpoints(Objects::disk(store).expect("a store")).with(settings)
}

async fn kill_everywhere() {
    let server = Server::shared(&[]);
    let (source, target) = tokio::join!(server.sandbox(), server.sandbox());
    let directory = tempfile::tempdir().expect("a directory");
    let world = World { server, checkpoints: open(directory.path()), id: project(PROJECT), store: directory.path() };
    // Two parts, so that one is stored before the other has arrived.
    run(&source, "head -c 9000000 /dev/urandom >big; mkdir d; echo 0 >d/file").await;
    world.save(&source).await;

    let mut met = BTreeSet::new();
    for point in CheckpointPoint::ALL.iter().copied() {
        match work_of(point) {
            "save" => world.kill_a_save(&source, point).await,
            "prune" => world.kill_a_prune(&source, point).await,
            "restore" => world.kill_a_restore(&source, &target, point).await,
            other => panic!("no test reaches points of {other}"),
        }
        met.insert(point);
    }
    assert_eq!(met.len(), CheckpointPoint::ALL.len());
}

fn work_of(point: CheckpointPoint) -> &'static str {
    point.name().split_once('.').expect("work and step").0
}

struct World<'a> {
    server: Arc<Server>,
    checkpoints: Checkpoints,
    id: ProjectId,
    store: &'a Path,
}

impl World<'_> {
    async fn save(&self, sandbox: &Sandbox) -> Stamp {
        // Unchanged files would store no other checkpoint.
        run(sandbox, "date +%s%N >d/changed").await;
        self.checkpoints.save(&port(sandbox), &self.id, &CheckpointOptions::default()).await.expect("a snapshot").stamp
    }

    /// All checkpoints, which must be complete.
    async fn stamps(&self) -> Vec<Stamp> {
        let listed = self.checkpoints.list(&self.id).await.expect("a list");
        for one in &listed {
            assert!(matches!(one.condition, CheckpointCondition::Whole { .. }), "a half snapshot is visible: {one:?}");
        }
        listed.iter().map(|listed| listed.stamp).collect()
    }

    /// Checks that only archives and manifests of existing checkpoints are stored.
    async fn assert_tidy(&self) {
        let stamps = self.stamps().await;
        let directory = self.store.join(format!("projects/{}/snapshots", self.id));
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        files.sort();
        let wanted: Vec<String> =
            stamps.iter().flat_map(|stamp| [format!("{stamp}.manifest.json"), format!("{stamp}.tar.gz")]).collect();
        assert_eq!(files, wanted, "orphans are cleaned up");
    }

    async fn kill_a_save(&self, source: &Sandbox, point: CheckpointPoint) {
        let before = self.stamps().await;
        run(source, &format!("echo {} >>d/file", point.name())).await;
        self.kill_at(point, "save", source);
        let after = self.stamps().await;
        let committed = matches!(point, CheckpointPoint::SaveCommitted | CheckpointPoint::SaveVerified);
        assert_eq!(after.len(), before.len() + usize::from(committed), "{point:?}");
        assert!(after.starts_with(&before), "{point:?}: earlier snapshots are as they were");

        let saved = self.save(source).await;
        assert!(after.iter().all(|stamp| *stamp < saved), "{point:?}");
        self.assert_tidy().await;
    }

    async fn kill_a_prune(&self, source: &Sandbox, point: CheckpointPoint) {
        while self.stamps().await.len() < 2 {
            self.save(source).await;
        }
        // As left by a save that was killed after its archive was stored.
        let orphan = self.store.join(format!("projects/{}/snapshots/20200101T000000Z.tar.gz", self.id));
        std::fs::write(&orphan, b"half").expect("our own directory");
        let before = self.stamps().await;
        self.kill_at(point, "prune", source);
        let after = self.stamps().await;
        assert_eq!(after.last(), before.last(), "{point:?}: the newest is never removed");
        self.checkpoints.prune(&self.id, 1).await.expect("a prune goes on");
        assert_eq!(self.stamps().await, before[before.len() - 1..], "{point:?}");
        self.assert_tidy().await;
    }

    async fn kill_a_restore(&self, source: &Sandbox, target: &Sandbox, point: CheckpointPoint) {
        run(source, &format!("echo {} >>d/file", point.name())).await;
        self.save(source).await;
        let (new, old) = (tree(source).await, tree(target).await);
        self.kill_at(point, "restore", target);
        if point == CheckpointPoint::RestoreSwapped {
            assert_same(&tree(target).await, &new);
        } else {
            let there: Vec<String> =
                tree(target).await.into_iter().filter(|line| !line.contains(".sandbar-restore.")).collect();
            // The stage next to the files changes the modification time of the directory, and
            // nothing else.
            assert_same(&there[1..], &old[1..]);
        }
        self.checkpoints.restore(&port(target), &self.id, Which::Newest).await.expect("the next restore works");
        assert_same(&tree(target).await, &new);
    }

    fn kill_at(&self, point: CheckpointPoint, work: &str, sandbox: &Sandbox) {
        let store = self.store.to_str().expect("a path of text");
        let values = [point.name(), work, self.server.address(), self.server.key(), sandbox.id().as_str(), store];
        kill_at(point.name(), "killed::a_kill_at_any_point_loses_nothing", WORK.into_iter().zip(values));
    }
}
