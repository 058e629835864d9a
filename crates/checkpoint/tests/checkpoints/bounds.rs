//! Archives from a hostile sandbox: rejected by a named limit, at once, without a trace in the
//! store and without loss of earlier checkpoints.

use std::path::Path;
use std::time::{Duration, Instant};

use sandbar_checkpoint::{
    ArchiveLimits, CheckpointOptions, CheckpointSettings, Checkpoints, Excess, ObjectStoreError, Objects, SaveError,
    Which,
};
use sdk::{Command, Sandbox};
use testing::{Server, eventually_async};

use crate::support::{port, project, run};

/// For what must happen, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Objects in a directory that is checked after each attempt.
struct Place {
    directory: tempfile::TempDir,
    checkpoints: Checkpoints,
}

impl Place {
    fn new(limits: ArchiveLimits) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = CheckpointSettings {
            backoff: Duration::from_millis(10),
            limits: Some(limits),
            ..CheckpointSettings::default()
        };
        let checkpoints = Checkpoints::new(Objects::disk(directory.path()).expect("a store")).with(settings);
        Self { directory, checkpoints }
    }

    async fn save(&self, sandbox: &Sandbox) -> Result<(), SaveError> {
        self.checkpoints.save(&port(sandbox), &project("hostile"), &CheckpointOptions::default()).await.map(drop)
    }

    /// Names and lengths of all stored files.
    fn stored(&self) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let mut left = vec![self.directory.path().to_owned()];
        while let Some(folder) = left.pop() {
            for entry in std::fs::read_dir(folder).expect("our own directory") {
                let entry = entry.expect("an entry");
                let facts = entry.metadata().expect("it is there");
                match facts.is_dir() {
                    true => left.push(entry.path()),
                    false => found.push((entry.path().display().to_string(), facts.len())),
                }
            }
        }
        found.sort();
        found
    }
}

/// Replaces `tar` by a program that writes its output.
async fn replace_tar(sandbox: &Sandbox, program: &str) {
    let line = format!(
        "cat >/usr/local/bin/tar <<'END' && chmod +x /usr/local/bin/tar\n#!/usr/bin/python3\n\
         import sys\nif '--extract' in sys.argv:\n    import os\n    os.execv('/usr/bin/tar', sys.argv)\n{program}\nEND"
    );
    let made = sandbox.commands().run(Command::new(line.as_str()).user("root")).await.expect("it runs");
    assert!(made.success(), "{made:?}");
}

/// Writes archives in Python: `header(name, kind, size)`, `pax(name, value)`, `send(blocks)`.
const WRITER: &str = r#"
import io, itertools, os, struct, sys, tarfile, zlib
out = sys.stdout.buffer
gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
def header(name, kind=b'0', size=0):
    info = tarfile.TarInfo(name); info.type = kind; info.size = size; info.mode = 0o644
    return info.tobuf(tarfile.USTAR_FORMAT)
def pad(data):
    return data + bytes(-len(data) % 512)
def pax(key, value):
    rest = len(key) + len(value) + 3
    length = next(n for n in itertools.count(rest) if len(str(n)) + rest == n)
    record = b'%d %s=%s\n' % (length, key, value)
    return header('x', b'x', len(record)) + pad(record)
def send(blocks):
    data = gzip.compress(blocks)
    if data:
        out.write(data)
def end():
    send(bytes(1024)); out.write(gzip.flush()); out.flush()
"#;

fn program(text: &str) -> String {
    format!("{WRITER}{text}")
}

async fn has_tar(sandbox: &Sandbox) -> bool {
    let listed = run(sandbox, "pgrep -fc '[/]usr/local/bin/tar' || true").await;
    listed.trim() != "0"
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_archives_are_rejected_without_a_trace() {
    const MIB: u64 = 1 << 20;
    let limits = ArchiveLimits { inflated_bytes: 64 * MIB, archive_bytes: 32 * MIB, ..ArchiveLimits::for_disk(0) };
    let limits = ArchiveLimits { entries: 40_000, name_bytes: 4 * MIB, ..limits };
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let place = Place::new(limits);
    run(&sandbox, "echo kept >file").await;
    place.save(&sandbox).await.expect("an honest snapshot");
    let before = place.stored();

    let endless = "while True:\n    send(header(os.urandom(8).hex(), b'0', 1 << 20) + os.urandom(1 << 20))";
    let noise = "while True:\n    out.write(os.urandom(1 << 20))";
    let attacks: [(&str, &str, Option<Excess>); 9] = [
        (
            "long paths",
            "for n in range(400):\n    send(pax(b'path', b'%d' % n + b'x' * 15_000_000) + header('a'))\nend()",
            Some(Excess::Header(limits.header_bytes)),
        ),
        ("a path", "send(pax(b'path', b'x' * 4097) + header('a'))\nend()", Some(Excess::Path(limits.path_bytes))),
        (
            "many entries",
            "for n in itertools.count():\n    send(header('%d' % n, b'5'))",
            Some(Excess::Entries(limits.entries)),
        ),
        (
            "many names",
            "for n in itertools.count():\n    send(pax(b'path', b'%d' % n + b'x' * 4000) + header('a'))",
            Some(Excess::Names(limits.name_bytes)),
        ),
        (
            "a gzip bomb",
            "send(header('zeros', b'0', 8_000_000_000))\nwhile True:\n    send(bytes(1 << 20))",
            Some(Excess::Inflated(limits.inflated_bytes)),
        ),
        (
            "zeros after the end",
            "send(header('a', b'5'))\nwhile True:\n    send(bytes(1 << 20))",
            Some(Excess::Inflated(limits.inflated_bytes)),
        ),
        ("an endless archive", endless, Some(Excess::Archive(limits.archive_bytes))),
        ("an endless stream", noise, None),
        ("names that repeat", "send((header('./', b'5') + header('./a')) * 3)\nend()", None),
    ];
    for (what, text, excess) in attacks {
        replace_tar(&sandbox, &program(text)).await;
        let begun = Instant::now();
        let refused = place.save(&sandbox).await;
        match (&refused, &excess) {
            (Err(SaveError::Excess { excess: found, .. }), Some(wanted)) => assert_eq!(found, wanted, "{what}"),
            (Err(SaveError::Garbled { .. }), None) => {}
            _ => panic!("{what}: {refused:?}"),
        }
        assert!(begun.elapsed() < DEADLINE, "{what} took {:?}", begun.elapsed());
        assert_eq!(place.stored(), before, "{what} leaves nothing in the store, and takes nothing from it");
        eventually_async("tar in the sandbox is ended", DEADLINE, || async {
            (!has_tar(&sandbox).await).then_some(())
        })
        .await;
    }

    let made = sandbox.commands().run(Command::new("rm /usr/local/bin/tar").user("root")).await.expect("it runs");
    assert!(made.success(), "{made:?}");
    run(&sandbox, "echo changed >file").await;
    place
        .checkpoints
        .restore(&port(&sandbox), &project("hostile"), Which::Newest)
        .await
        .expect("what was saved before");
    assert_eq!(run(&sandbox, "cat file").await, "kept\n");
    run(&sandbox, "echo more >file").await;
    place.save(&sandbox).await.expect("the workspace can be saved as before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trickling_archive_is_abandoned() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let silence = Duration::from_millis(500);
    let settings = CheckpointSettings { silence, ..CheckpointSettings::default() };
    let checkpoints = Checkpoints::new(Objects::memory()).with(settings);
    replace_tar(&sandbox, &program("import time\nwhile True:\n    out.write(b'\\x1f'); out.flush(); time.sleep(0.05)"))
        .await;
    let refused = checkpoints.save(&port(&sandbox), &project("slow"), &CheckpointOptions::default()).await;
    // A reader that sees no gzip may fail first.
    assert!(matches!(refused, Err(SaveError::Slow { .. } | SaveError::Garbled { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_archive_ends_with_the_time_of_the_save() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let settings = CheckpointSettings { longest: Duration::from_secs(10), ..CheckpointSettings::default() };
    let checkpoints = Checkpoints::new(Objects::memory()).with(settings);
    // Fast enough for every rate, and without an end.
    let endless = "import time\nfor n in itertools.count():\n    send(header('%d' % n, b'0', 65536) + os.urandom(65536))\n    \
                   out.flush(); time.sleep(0.2)";
    replace_tar(&sandbox, &program(&format!("open('/tmp/starts', 'a').write('x')\n{endless}"))).await;
    let begun = Instant::now();
    let refused = checkpoints.save(&port(&sandbox), &project("endless"), &CheckpointOptions::default()).await;
    assert!(matches!(refused, Err(SaveError::TimedOut { .. })), "{refused:?}");
    // With a deadline per attempt it would take three times as long.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(run(&sandbox, "cat /tmp/starts").await, "x", "it is not started again");
    eventually_async("tar in the sandbox is ended", DEADLINE, || async { (!has_tar(&sandbox).await).then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_cannot_be_read_is_made_once() {
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let settings = CheckpointSettings { backoff: Duration::from_millis(10), ..CheckpointSettings::default() };
    let checkpoints = Checkpoints::new(Objects::memory()).with(settings);
    let programs = [("garbage", "out.write(b'no gzip' * 100)"), ("a part", "send(header('a', b'0', 5000))\nend()")];
    for (number, (what, text)) in programs.into_iter().enumerate() {
        replace_tar(&sandbox, &program(&format!("open('/tmp/starts-{number}', 'a').write('x')\n{text}"))).await;
        let refused = checkpoints.save(&port(&sandbox), &project("garbled"), &CheckpointOptions::default()).await;
        assert!(matches!(refused, Err(SaveError::Garbled { .. })), "{what}: {refused:?}");
        assert_eq!(run(&sandbox, &format!("cat /tmp/starts-{number}")).await, "x", "{what}");
    }
}

/// A directory on a disk of its own. Needs root.
fn mounted(size: &str) -> (tempfile::TempDir, impl Drop) {
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(directory.path());
    assert!(mount.status().expect("mount runs").success());
    let unmount = Unmount(directory.path().to_owned());
    (directory, unmount)
}

fn free(path: &Path) -> u64 {
    let disk = rustix::fs::statvfs(path).expect("a file system");
    disk.f_bavail * disk.f_frsize
}

/// Free space is checked during the upload: the length is not known before.
#[tokio::test(flavor = "multi_thread")]
async fn disk_faults_of_a_filling_directory_leave_a_reserve() {
    testing::needs_root!("it mounts a disk");
    let server = Server::shared(&[]);
    let sandbox = server.sandbox().await;
    let (directory, _mounted) = mounted("100m");
    let checkpoints = Checkpoints::new(Objects::disk(&directory.path().join("objects")).expect("a store"));
    let id = project("reserve");
    run(&sandbox, "head -c 20000000 /dev/urandom >small").await;
    let first = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("there is room");
    run(&sandbox, "head -c 90000000 /dev/urandom >large").await;
    let before = free(directory.path());
    let refused = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await;
    let Err(SaveError::Store { source: ObjectStoreError::NoSpace { .. }, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert!(free(directory.path()) + (64 << 10) >= before, "what came is taken back");
    let listed = checkpoints.list(&id).await.expect("a list");
    assert_eq!(listed.iter().map(|listed| listed.stamp).collect::<Vec<_>>(), [first.stamp]);

    run(&sandbox, "rm large").await;
    let again = checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("a snapshot");
    assert!(again.unchanged, "{again:?}");
    run(&sandbox, "head -c 10000000 /dev/urandom >more").await;
    checkpoints.save(&port(&sandbox), &id, &CheckpointOptions::default()).await.expect("there is room for this");
}
