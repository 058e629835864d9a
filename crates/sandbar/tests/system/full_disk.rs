//! A host disk that is full or that fails: synced data stays, the server reports the cause, and it
//! works again once the disk has free space.
//!
//! Needs root, loop devices, ext4 and btrfs.

use crate::support::{Sandbox, Server, eventually};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testing::{Disk, User, repeats};

const DISK_BYTES: u64 = 3 << 30;

/// Allocates every block of the file system, with those reserved for root.
fn allocate_all(file: &Path) {
    let free = rustix::fs::statvfs(file.parent().expect("a directory")).expect("a file system");
    let mut file = File::create(file).expect("a file");
    // Most of it by one call, the rest in smaller and smaller pieces.
    let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free.f_bavail * free.f_frsize);
    file.seek(SeekFrom::End(0)).expect("a file");
    for size in [16 << 20, 1 << 20, 4096] {
        let block = vec![9; size];
        while file.write_all(&block).is_ok() {}
    }
    // Fails with ENOSPC: the disk is full, as intended.
    let _ = file.sync_all();
}

fn try_create(server: &Server) -> (u16, String) {
    let reply = server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "base" })));
    (reply.status, reply.text())
}

fn resume(server: &Server, sandbox: &Sandbox) -> Sandbox {
    let reply = server.call("POST", &format!("/v2/sandboxes/{}/connect", sandbox.id), Some(json!({})));
    assert!(matches!(reply.status, 200 | 201), "{} {}", reply.status, reply.text());
    sandbox.at(&server.address)
}

/// Counts the log lines about a pool that the kernel has aborted.
fn count_aborted(server: &Server) -> usize {
    server.log().iter().filter(|line| line.contains("sandboxes cannot write any more")).count()
}

fn send(server: &Server, path: &str, body: Value) -> (u16, String) {
    let reply = server.call("POST", path, Some(body));
    (reply.status, reply.text())
}

/// One file of a volume, by the content API.
struct Volume {
    path: String,
    authorization: String,
}

impl Volume {
    fn new(made: &Value) -> Self {
        let text = |key: &str| made[key].as_str().expect("a new volume").to_owned();
        let path = format!("/volumecontent/{}/file?path=/file", text("volumeID"));
        Self { path, authorization: format!("Bearer {}", text("token")) }
    }

    fn call(&self, server: &Server, method: &str, body: &[u8]) -> (u16, String) {
        let headers = [("Authorization", self.authorization.as_str())];
        let reply = testing::http::request(&server.address, method, &self.path, &headers, body);
        let reply = reply.expect("an answer");
        (reply.status, reply.text())
    }

    fn write(&self, server: &Server, content: &[u8]) -> (u16, String) {
        self.call(server, "PUT", content)
    }

    fn read(&self, server: &Server) -> (u16, String) {
        self.call(server, "GET", b"")
    }
}

fn synced_content(sandbox: &Sandbox) -> String {
    sandbox.must("user", "cat synced")
}

#[test]
fn full_host_disk_costs_nothing_synced() {
    testing::needs_root!("it mounts a disk");
    (0..repeats(1, 5)).for_each(|_| fill_host_disk(None));
}

#[test]
fn full_host_disk_costs_rootless_servers_nothing_synced() {
    testing::needs_root!("it mounts a disk");
    (0..repeats(1, 5)).for_each(|_| fill_host_disk(Some(User::with_subordinate_ids())));
}

fn fill_host_disk(user: Option<User>) {
    let disk = Disk::new(DISK_BYTES);
    if let Some(user) = user {
        disk.give(user, &["data"]);
    }
    let server = Server::for_account_on(user, &disk.path().join("data"), &["--no-studio"]);
    let sandboxes = [server.create(), server.create()];
    let mut writers = Vec::new();
    for sandbox in &sandboxes {
        sandbox.must("user", "echo kept >synced; sync synced; sync -f .");
        let line = "while :; do head -c 200000 /dev/urandom >>noise-$RANDOM 2>/dev/null; done";
        writers.push(sandbox.start_as("user", line));
    }
    let filler = disk.path().join("filler");
    allocate_all(&filler);
    // Reads work while every write of the writers fails.
    for sandbox in &sandboxes {
        assert_eq!(synced_content(sandbox), "kept\n");
    }
    let (status, text) = try_create(&server);
    assert_eq!(status, 507, "{text}");
    let mount = disk.path();
    let mount = mount.to_str().expect("a plain name");
    for part in ["no space left", mount, "free space there", "df -h"] {
        assert!(text.contains(part), "{part:?} is not said: {text}");
    }

    fs::remove_file(&filler).expect("it was made above");
    for (sandbox, mut writer) in sandboxes.iter().zip(writers) {
        sandbox.must("user", &format!("kill {}; rm -f noise-*", writer.pid()));
    }
    eventually("sandboxes can be made again", Duration::from_secs(60), || (try_create(&server).0 == 201).then_some(()));
    for sandbox in &sandboxes {
        sandbox.must("user", "echo more >after; sync after");
        assert_eq!(synced_content(sandbox), "kept\n");
    }
}

/// Makes empty files until the file system at `directory` has no inodes left; returns their
/// directory.
fn use_all_inodes(directory: &Path) -> PathBuf {
    let filler = directory.join("inodes");
    fs::create_dir(&filler).expect("there is one left for the directory");
    let refused = (0..).find_map(|number| File::create(filler.join(format!("{number}"))).err());
    assert_eq!(refused.and_then(|error| error.raw_os_error()), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    filler
}

/// The pool of a rootless server is directories on the host's file system.
#[test]
fn used_up_inodes_are_named_with_their_directory() {
    (0..repeats(1, 5)).for_each(|_| refuse_without_inodes(User::with_subordinate_ids()));
}

fn refuse_without_inodes(user: User) {
    let disk = Disk::with_inodes(DISK_BYTES, 100_000);
    disk.give(user, &["data"]);
    let server = Server::for_account_on(Some(user), &disk.path().join("data"), &["--no-studio"]);
    let sandbox = server.create();
    sandbox.must("user", "echo kept >synced; sync -f .");
    let filler = use_all_inodes(&disk.path());
    // Spare files are used up by the first creates.
    let refused = eventually("a create is refused", Duration::from_secs(60), || {
        let (status, text) = try_create(&server);
        (status != 201).then_some((status, text))
    });
    let (status, text) = refused;
    assert_eq!(status, 507, "{text}");
    let mount = disk.path();
    for part in ["inodes", "df -i", mount.to_str().expect("a plain name")] {
        assert!(text.contains(part), "{part:?} is not said: {text}");
    }
    assert_eq!(synced_content(&sandbox), "kept\n", "reading works");
    fs::remove_dir_all(&filler).expect("it was made above");
    eventually("sandboxes can be made again", Duration::from_secs(60), || (try_create(&server).0 == 201).then_some(()));
}

/// The directory in `/proc` of a process of the sandbox.
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

/// Punches holes for the blocks that the image has allocated and never written, which have no data.
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

/// A server that is stopped by SIGSTOP until drop.
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

/// Creates files with long names, which btrfs stores as metadata.
const MAKE_FILES: &str =
    r#"cd /home/user; for i in $(seq 500); do : >"$(printf %0200d $(($0 * 500 + i)))" || exit 1; done; sync -f ."#;

/// Makes the kernel abort the pool's file system. The server, which prevents that, is stopped
/// meanwhile; the image loses its preallocated blocks, the host its free space, and then a sandbox
/// writes.
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
    allocate_all(&filler);
    let mut round = 0;
    eventually("the kernel aborts the pool", Duration::from_secs(60), || {
        round += 1;
        let message = make_files(round);
        (message.contains("Input/output error") || message.contains("Read-only file system")).then_some(())
    });
    drop(stopped);
    fs::remove_file(&filler).expect("it was made above");
}

#[test]
fn full_host_disk_that_aborted_the_pool_is_reported() {
    testing::needs_root!("it mounts a disk");
    (0..repeats(1, 5)).for_each(|_| abort_pool_twice());
}

fn abort_pool_twice() {
    let disk = Disk::new(DISK_BYTES);
    let mut server = Server::on(&disk.path().join("data"), &["--no-studio"]);
    let sandbox = server.create();
    sandbox.must("user", "echo kept >synced; sync -f .");
    let volume = server.call("POST", "/volumes", Some(json!({ "name": "kept" }))).json();
    let volume = Volume::new(&volume);
    assert!(volume.write(&server, b"kept").0 < 300);
    assert_eq!(count_aborted(&server), 0);
    let pid = sandbox.start_as("user", "exec sleep 3600").pid();
    abort_pool(&server, &disk, &sandbox);

    for (what, (status, text)) in [
        ("create", try_create(&server)),
        ("pause of files", send(&server, &format!("/sandboxes/{}/pause", sandbox.id), json!({ "memory": false }))),
        ("pause", send(&server, &format!("/sandboxes/{}/pause", sandbox.id), json!({}))),
        ("snapshot", send(&server, &format!("/sandboxes/{}/snapshots", sandbox.id), json!({ "name": "state" }))),
        ("new volume", send(&server, "/volumes", json!({ "name": "other" }))),
        ("volume write", volume.write(&server, b"other")),
    ] {
        assert_eq!(status, 507, "{what}: {text}");
        assert!(text.contains("Free space") && text.contains("sandbar up"), "{what}: what to do is said: {text}");
    }
    assert_eq!(synced_content(&sandbox), "kept\n", "reading works");
    sandbox.must("user", &format!("kill -0 {pid}"));
    assert_eq!(volume.read(&server), (200, "kept".to_owned()));
    let ready = server.call("GET", "/ready", None);
    let pool = ready.json()["parts"]["pool"].clone();
    assert_eq!((ready.status, &pool["ok"]), (503, &json!(false)), "{}", ready.text());
    assert!(pool.to_string().contains("aborted its file system"), "the cause is told: {}", ready.text());
    assert_eq!(ready.json()["parts"]["records"]["ok"], true, "{}", ready.text());
    assert_eq!(server.call("GET", "/health", None).status, 503);
    eventually("the log says so", Duration::from_secs(30), || (count_aborted(&server) > 0).then_some(()));
    server.stop();
    assert_eq!(count_aborted(&server), 1, "{:?}", server.log());
    server.start_again();
    let sandbox = resume(&server, &sandbox);
    assert_eq!(synced_content(&sandbox), "kept\n");
    sandbox.must("user", "echo more >after; sync after");
    assert_eq!(try_create(&server).0, 201);

    abort_pool(&server, &disk, &sandbox);
    server.down();
    server.start_again();
    assert_eq!(try_create(&server).0, 201, "what is left is a pool like any other");
}

/// Makes a call that writes for each kind of data, and returns the outcomes.
fn write_each_kind(server: &Server, token: &str, sandbox: &Sandbox, name: &str) -> Vec<(&'static str, u16, String)> {
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let build = json!({ "name": name, "goal": "Make a page.", "model": "scripted:demo" }).to_string();
    let build = testing::http::request(&server.address, "POST", "/api/generation", &headers, build.as_bytes());
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
fn disk_faults_below_a_server_are_reported_and_survived() {
    testing::needs_root!("it mounts a disk");
    (0..repeats(1, 5)).for_each(|_| fail_disk_below_a_server());
}

fn fail_disk_below_a_server() {
    let mut disk = Disk::new(DISK_BYTES);
    let mut server = Server::on(&disk.path().join("data"), &["--builds", "0"]);
    let token = fs::read_to_string(server.file("studio/token")).expect("the first user's token").trim().to_owned();
    let (sandbox, other) = (server.create(), server.create());
    sandbox.must("user", "echo kept >synced; sync -f .");
    for (what, status, text) in write_each_kind(&server, &token, &other, "before") {
        assert!((200..300).contains(&status), "{what}: {status} {text}");
    }

    // A thread makes calls while the disk begins to fail.
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
    for (what, status, text) in write_each_kind(&server, &token, &sandbox, "after") {
        assert!(matches!(status, 503 | 507), "{what}: {status} {text}");
    }
    let ready = server.call("GET", "/ready", None);
    assert_eq!((ready.status, &ready.json()["parts"]["records"]["ok"]), (503, &json!(false)), "{}", ready.text());
    assert_eq!(ready.json()["parts"]["studio"]["ok"], false, "{}", ready.text());
    assert_eq!(server.call("GET", "/health", None).status, 503);
    let listed = server.call("GET", "/v2/sandboxes", None);
    assert_eq!(listed.status, 200, "what is known is told: {}", listed.text());

    // The server and the sandboxes must end before the disk can be repaired.
    server.kill_9();
    for made in listed.json().as_array().expect("sandboxes") {
        let guest = find_process_of(made["sandboxID"].as_str().expect("an id"));
        if let Some(number) = guest.as_ref().and_then(|guest| guest.file_name()) {
            // Fails if the guest has ended by itself, because its disk fails.
            let _ = Command::new("kill").arg("-KILL").arg(number).status();
        }
    }
    disk.repair();
    server.start_again();
    assert_eq!(server.call("GET", "/ready", None).status, 200);
    assert_eq!(synced_content(&resume(&server, &sandbox)), "kept\n");
    assert_eq!(try_create(&server).0, 201);
}
