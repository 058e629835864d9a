//! A host disk that is full, or that fails: what was synced stays, the server says what is wrong, and it works
//! again when there is space.
//!
//! Takes root, loop devices, ext4 and btrfs.

use crate::support::{Sandbox, Server, eventually};
use serde_json::json;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testing::Disk;

const DISK_BYTES: u64 = 3 << 30;

/// Takes every block of the file system, those for root too.
fn take_all(file: &Path) {
    let free = rustix::fs::statvfs(file.parent().expect("a directory")).expect("a file system");
    let mut file = File::create(file).expect("a file");
    // At once, as a careless program does it; the rest piece by piece.
    let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free.f_bavail * free.f_frsize);
    file.seek(SeekFrom::End(0)).expect("a file");
    for size in [16 << 20, 1 << 20, 4096] {
        let block = vec![9; size];
        while file.write_all(&block).is_ok() {}
    }
    // The disk is full: that is what was wanted.
    let _ = file.sync_all();
}

fn create(server: &Server) -> (u16, String) {
    let reply = server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "base" })));
    (reply.status, reply.text())
}

fn resumed(server: &Server, sandbox: &Sandbox) -> Sandbox {
    let reply = server.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    sandbox.at(&server.address)
}

fn synced_content(sandbox: &Sandbox) -> String {
    sandbox.must("user", "cat synced")
}

#[test]
fn full_host_disk_costs_nothing_that_was_synced() {
    let disk = Disk::new(DISK_BYTES);
    let server = Server::on(&disk.path().join("data"), &["--no-studio"]);
    let sandboxes = [server.create(), server.create()];
    let mut writers = Vec::new();
    for sandbox in &sandboxes {
        sandbox.must("user", "echo kept >synced; sync synced; sync -f .");
        let line = "while :; do head -c 200000 /dev/urandom >>noise-$RANDOM 2>/dev/null; done";
        writers.push(sandbox.start_as("user", line));
    }
    let filler = disk.path().join("filler");
    take_all(&filler);
    // The writers meet a disk that takes nothing.
    for sandbox in &sandboxes {
        assert_eq!(synced_content(sandbox), "kept\n");
    }
    let (status, text) = create(&server);
    assert!(matches!(status, 503 | 507), "{status} {text}");

    fs::remove_file(&filler).expect("it was made above");
    for (sandbox, mut writer) in sandboxes.iter().zip(writers) {
        sandbox.must("user", &format!("kill {}; rm -f noise-*", writer.pid()));
    }
    eventually("sandboxes can be made again", Duration::from_secs(60), || (create(&server).0 == 201).then_some(()));
    for sandbox in &sandboxes {
        sandbox.must("user", "echo more >after; sync after");
        assert_eq!(synced_content(sandbox), "kept\n");
    }
}

/// Process 1 of a sandbox.
fn process_of(sandbox: &Sandbox) -> PathBuf {
    find_process_of(&sandbox.id).expect("the sandbox runs")
}

fn find_process_of(id: &str) -> Option<PathBuf> {
    let in_group = |process: &PathBuf| {
        fs::read_to_string(process.join("cgroup")).is_ok_and(|groups| groups.contains(&format!("/{id}")))
    };
    let processes = fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path());
    processes.filter(|path| path.join("root").exists()).find(in_group)
}

/// Gives the blocks back that the image has allocated and never written to: there is nothing in
/// them.
fn free_unwritten(image: &Path) {
    let listed = Command::new("filefrag").arg("-v").arg("-b4096").arg(image).output().expect("e2fsprogs");
    for line in String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.contains("unwritten")) {
        let fields: Vec<&str> = line.split(':').map(str::trim).collect();
        let first: u64 = fields[1].split("..").next().and_then(|text| text.trim().parse().ok()).expect("a block");
        let blocks: u64 = fields[3].parse().expect("a length");
        let (offset, length) = ((first * 4096).to_string(), (blocks * 4096).to_string());
        let done = Command::new("fallocate").args(["-p", "-o", &offset, "-l", &length]).arg(image).status();
        assert!(done.expect("fallocate runs").success());
    }
}

/// A server that does nothing until this is dropped.
struct Stopped<'a>(&'a Server);

impl<'a> Stopped<'a> {
    fn new(server: &'a Server) -> Self {
        server.signal("STOP");
        Self(server)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}

/// Makes files whose names are long: names are metadata.
const MAKE_FILES: &str =
    r#"cd /home/user; for i in $(seq 500); do : >"$(printf %0200d $(($0 * 500 + i)))" || exit 1; done; sync -f ."#;

/// Has the kernel abort the pool: without the server, which would not let that happen, the image
/// loses what was allocated ahead, the host its space, and then a sandbox writes.
fn abort_pool(server: &Server, disk: &Disk, sandbox: &Sandbox) {
    let filler = disk.path().join("filler");
    let process = process_of(sandbox);
    let process = process.file_name().and_then(|name| name.to_str()).expect("a number");
    let make_files = |round: u32| {
        let mut inside = Command::new("nsenter");
        inside.args(["--target", process, "--user", "--mount", "--root", "--setuid", "1000", "--setgid", "1000"]);
        let done = inside.args(["/bin/bash", "-c", MAKE_FILES, &round.to_string()]).output().expect("nsenter runs");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let stopped = Stopped::new(server);
    assert_eq!(make_files(0), "", "there is room still, and nothing is left to be written out");
    free_unwritten(&server.file("pool.img"));
    let _ = fs::remove_file(server.file("pool.reserve"));
    take_all(&filler);
    let mut round = 0;
    eventually("the kernel aborts the pool", Duration::from_secs(60), || {
        round += 1;
        let said = make_files(round);
        (said.contains("Input/output error") || said.contains("Read-only file system")).then_some(())
    });
    drop(stopped);
    fs::remove_file(&filler).expect("it was made above");
}

#[test]
fn full_host_disk_that_aborted_the_pool_is_told_and_survived() {
    let disk = Disk::new(DISK_BYTES);
    let mut server = Server::on(&disk.path().join("data"), &["--no-studio"]);
    let sandbox = server.create();
    sandbox.must("user", "echo kept >synced; sync -f .");
    abort_pool(&server, &disk, &sandbox);

    let (status, text) = create(&server);
    assert_eq!(status, 507, "{text}");
    assert!(text.contains("Free space") && text.contains("sandbar up"), "what to do is said: {text}");
    assert_eq!(synced_content(&sandbox), "kept\n", "reading works");

    server.stop();
    server.start_again();
    let sandbox = resumed(&server, &sandbox);
    assert_eq!(synced_content(&sandbox), "kept\n");
    sandbox.must("user", "echo more >after; sync after");
    assert_eq!(create(&server).0, 201);

    abort_pool(&server, &disk, &sandbox);
    server.down();
    server.start_again();
    assert_eq!(create(&server).0, 201, "what is left is a pool like any other");
}

/// Calls that change something, one of each kind of data.
fn changes(server: &Server, token: &str, sandbox: &Sandbox, name: &str) -> Vec<(&'static str, u16, String)> {
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let build = json!({ "name": name, "goal": "Make a page.", "model": "scripted:demo" }).to_string();
    let build = crate::support::http::request(&server.address, "POST", "/api/generation", &headers, build.as_bytes());
    let pause = format!("/sandboxes/{}/pause", sandbox.id);
    let calls = [
        ("create", server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "base" })))),
        ("volume", server.call("POST", "/volumes", Some(json!({ "name": name })))),
        ("secret", server.call("POST", "/secrets", Some(json!({ "name": name, "value": "hidden" })))),
        ("pause", server.call("POST", &pause, Some(json!({ "memory": false })))),
        ("build", build.expect("an answer")),
    ];
    calls.into_iter().map(|(what, reply)| (what, reply.status, reply.text())).collect()
}

#[test]
fn disk_faults_below_a_whole_server_are_told_and_survived() {
    let mut disk = Disk::new(DISK_BYTES);
    let mut server = Server::on(&disk.path().join("data"), &["--builds", "0"]);
    let token = fs::read_to_string(server.file("studio/token")).expect("the first user's token").trim().to_owned();
    let (sandbox, other) = (server.create(), server.create());
    sandbox.must("user", "echo kept >synced; sync -f .");
    for (what, status, text) in changes(&server, &token, &other, "before") {
        assert!((200..300).contains(&status), "{what}: {status} {text}");
    }

    // Calls run when the disk begins to fail.
    let failed = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !failed.load(std::sync::atomic::Ordering::Relaxed) {
                let reply = server.call("POST", "/secrets/before", Some(json!({ "value": "another" })));
                assert!(matches!(reply.status, 200 | 500..), "{}", reply.text());
            }
        });
        disk.fail();
        failed.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    for (what, status, text) in changes(&server, &token, &sandbox, "after") {
        assert!(matches!(status, 503 | 507), "{what}: {status} {text}");
    }
    let ready = server.call("GET", "/ready", None);
    assert_eq!((ready.status, &ready.json()["parts"]["records"]["ok"]), (503, &json!(false)), "{}", ready.text());
    assert_eq!(ready.json()["parts"]["studio"]["ok"], false, "{}", ready.text());
    assert_eq!(server.call("GET", "/health", None).status, 503);
    let listed = server.call("GET", "/v2/sandboxes", None);
    assert_eq!(listed.status, 200, "what is known is told: {}", listed.text());

    // A disk is repaired while nothing uses it.
    server.kill_9();
    for made in listed.json().as_array().expect("sandboxes") {
        let guest = find_process_of(made["sandboxID"].as_str().expect("an id"));
        if let Some(number) = guest.as_ref().and_then(|guest| guest.file_name()) {
            // It may end by itself meanwhile: its disk fails.
            let _ = Command::new("kill").arg("-KILL").arg(number).status();
        }
    }
    disk.repair();
    server.start_again();
    assert_eq!(server.call("GET", "/ready", None).status, 200);
    assert_eq!(synced_content(&resumed(&server, &sandbox)), "kept\n");
    assert_eq!(create(&server).0, 201);
}
