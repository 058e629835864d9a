//! Missing parts of a used data directory, with a real server and a real pool: the server starts
//! nothing with empty files and removes nothing.

use crate::support::server::PROGRAM;
use crate::support::{Program, Sandbox, Server, eventually};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use testing::http::{Reply, request};

fn pause(server: &Server, sandbox: &Sandbox, memory: bool) {
    let reply = server.call("POST", &format!("/sandboxes/{}/pause", sandbox.id), Some(json!({ "memory": memory })));
    assert_eq!(reply.status, 204, "{}", reply.text());
}

fn connect(server: &Server, id: &str) -> (u16, Value) {
    let reply = server.call("POST", &format!("/v2/sandboxes/{id}/connect"), Some(json!({})));
    (reply.status, reply.json())
}

/// Resumes a sandbox. A recovered one has a new token.
#[track_caller]
fn resume(server: &Server, id: &str) -> Sandbox {
    let (status, answer) = connect(server, id);
    assert!(matches!(status, 200 | 201), "{status} {answer}");
    Sandbox::new(&server.address, id.to_owned(), answer["envdAccessToken"].as_str().expect("a token").to_owned())
}

fn up(data: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    testing::without_settings(&mut command).env("SANDBAR_LOG", "error");
    command.args(["up", "--listen", "127.0.0.1:0", "--no-studio", "--data"]).arg(data).args(more);
    command.env("XDG_CONFIG_HOME", data.join("none")).env("XDG_DATA_HOME", data.join("none"));
    command.output().expect("it runs")
}

/// Asserts that the server refuses to start, twice, and returns its message.
#[track_caller]
fn fail_to_start(data: &Path) -> String {
    let messages = [up(data, &[]), up(data, &[])].map(|done| {
        assert!(!done.status.success());
        String::from_utf8(done.stderr).expect("text")
    });
    assert_eq!(messages[0], messages[1], "the first refusal changes nothing");
    assert!(messages[0].contains("--accept-missing-files"), "{}", messages[0]);
    messages[0].clone()
}

fn list_trash(server: &Server) -> Vec<Value> {
    let reply = server.call("GET", "/sandbar/trash", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json().as_array().expect("a list").clone()
}

/// A sandbox, a snapshot and a volume, with a file in each.
struct Fixture {
    sandbox: Sandbox,
    volume: String,
    token: String,
}

impl Fixture {
    fn create(server: &Server) -> Self {
        let sandbox = server.create_with(json!({ "templateID": "base", "metadata": { "of": "me" } }));
        sandbox.must("user", "echo work > file");
        let snapshot =
            server.call("POST", &format!("/sandboxes/{}/snapshots", sandbox.id), Some(json!({ "name": "state" })));
        assert_eq!(snapshot.status, 201, "{}", snapshot.text());
        pause(server, &sandbox, false);
        let made = server.call("POST", "/volumes", Some(json!({ "name": "cache" })));
        assert_eq!(made.status, 201, "{}", made.text());
        let text = |key: &str| made.json()[key].as_str().expect("text").to_owned();
        let fixture = Self { sandbox, volume: text("volumeID"), token: text("token") };
        assert!(fixture.volume_call(server, "PUT", b"kept").status < 300);
        fixture
    }

    fn volume_call(&self, server: &Server, method: &str, body: &[u8]) -> Reply {
        let path = format!("/volumecontent/{}/file?path=/note", self.volume);
        let authorization = format!("Bearer {}", self.token);
        let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/octet-stream")];
        request(&server.address, method, &path, &headers, body).expect("an answer")
    }

    /// Asserts that the server has everything, unchanged.
    #[track_caller]
    fn check(&self, server: &Server) {
        let sandbox = resume(server, &self.sandbox.id);
        assert_eq!(sandbox.must("user", "cat file"), "work\n");
        let listed = server.call("GET", &format!("/sandboxes/{}", self.sandbox.id), None).json();
        assert_eq!(listed["metadata"]["of"], "me", "{listed}");
        let copy = server.create_with(json!({ "templateID": "state" }));
        assert_eq!(copy.must("user", "cat file"), "work\n");
        assert_eq!(server.call("DELETE", &format!("/sandboxes/{}", copy.id), None).status, 204);
        let volumes = server.call("GET", "/volumes", None).json();
        assert_eq!(volumes[0]["name"], "cache", "{volumes}");
        pause(server, &sandbox, false);
    }
}

/// Moves the files of the database to another directory.
fn move_database(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for name in ["node.sqlite", "node.sqlite-wal", "node.sqlite-shm"] {
        // Only the first exists while no server has the database open.
        let _ = std::fs::remove_file(to.join(name));
        let _ = std::fs::rename(from.join(name), to.join(name));
    }
}

#[test]
fn a_missing_pool_is_reported_and_never_replaced() {
    let mut server = Server::with(&["--no-studio"]);
    let fixture = Fixture::create(&server);
    server.stop();
    let (pool, aside) = (server.file("pool.img"), server.file("aside.img"));
    assert!(pool.exists(), "these tests run where the pool is an image");
    let move_away = || std::fs::rename(&pool, &aside);
    eventually("the pool is let go", Duration::from_secs(30), || move_away().ok());
    let message = fail_to_start(server.data());
    assert!(message.contains("pool.img") && message.contains("names the files of 3"), "{message}");
    assert!(!pool.exists(), "none was made");

    // With --accept-missing-files the server starts and lists the sandbox. Calls that need missing
    // files fail with a code.
    server.start_again_with(&["--no-studio", "--accept-missing-files"]);
    let id = &fixture.sandbox.id;
    let (status, answer) = connect(&server, id);
    assert_eq!((status, &answer["error_code"]), (410, &json!("sandbox_files_missing")), "{answer}");
    assert!(answer["message"].as_str().is_some_and(|text| text.contains(id) && text.contains("missing")), "{answer}");
    let made = server.call("POST", "/v2/sandboxes", Some(json!({ "templateID": "state" })));
    assert_eq!((made.status, &made.json()["error_code"]), (410, &json!("template_files_missing")), "{}", made.text());
    let mounts = json!({ "templateID": "base", "volumeMounts": [{ "name": "cache", "path": "/cache" }] });
    let made = server.call("POST", "/v2/sandboxes", Some(mounts));
    assert_eq!((made.status, &made.json()["error_code"]), (410, &json!("volume_files_missing")), "{}", made.text());
    assert_eq!(fixture.volume_call(&server, "GET", b"").status, 410);
    server.stop();

    // The pool is moved back: the server has everything again.
    eventually("the new pool is let go", Duration::from_secs(30), || std::fs::rename(&aside, &pool).ok());
    server.start_again_with(&["--no-studio"]);
    fixture.check(&server);
    assert_eq!(fixture.volume_call(&server, "GET", b"").text(), "kept");
    assert_eq!(list_trash(&server), [Value::Null; 0]);
}

#[test]
fn a_workspace_whose_files_are_missing_is_restored() {
    let mut server = Server::with(&["--no-studio"]);
    let home = tempfile::tempdir().expect("a directory");
    let workspace = Program::new("workspace").variable("XDG_DATA_HOME", home.path().join("data"));
    let workspace = workspace.variable("XDG_CONFIG_HOME", home.path().join("config")).at(&server);
    let lost = workspace.json(&["create", "shop"])["sandboxID"].clone();
    workspace.must(&["exec", "shop", "-c", "for i in $(seq 20); do echo $i >file$i; done"]);
    let full = workspace.json(&["snapshot", "shop"]);
    workspace.must(&["pause", "shop"]);
    server.stop();
    let (pool, aside) = (server.file("pool.img"), server.file("aside.img"));
    eventually("the pool is let go", Duration::from_secs(30), || std::fs::rename(&pool, &aside).ok());
    server.start_again_with(&["--no-studio", "--accept-missing-files"]);

    let resumed = workspace.json(&["resume", "shop"]);
    let back = &resumed["brought_back"];
    assert_eq!(back["reason"], "files_missing", "{resumed}");
    assert!(full["key"].as_str().expect("a key").contains(back["snapshot"].as_str().expect("a stamp")), "{resumed}");
    assert_ne!(resumed["sandboxID"], lost);
    assert_eq!(workspace.must(&["exec", "shop", "-c", "cat file1 file20; ls | wc -l"]), "1\n20\n20\n");
    for round in 0..6 {
        workspace.must(&["exec", "shop", "-c", &format!("echo {round} >file1")]);
        workspace.must(&["pause", "shop"]);
    }
    let listed = workspace.json(&["snapshots", "shop"]);
    let files = |one: &Value| one["files"].as_u64().expect("a number");
    let listed = listed.as_array().expect("a list");
    assert_eq!(listed.len(), 5, "{listed:?}");
    let kept = listed.iter().position(|one| one["key"] == full["key"]).expect("the full one is kept");
    assert!(listed[kept..].iter().all(|one| files(one) >= files(&full)), "none of an empty tree: {listed:?}");
    assert_eq!(workspace.must(&["exec", "shop", "-c", "cat file1 file20"]), "5\n20\n");
    workspace.must(&["destroy", "shop", "--yes"]);
}

#[test]
fn a_database_that_is_missing_empty_or_old_loses_nothing() {
    let mut server = Server::with(&["--no-studio"]);
    let (data, aside) = (server.data().to_owned(), server.file("aside"));
    // The older copy of the database has no records yet.
    server.stop();
    std::fs::create_dir_all(&aside).expect("a directory");
    std::fs::copy(data.join("node.sqlite"), aside.join("yesterday")).expect("a copy");
    server.start_again();
    let fixture = Fixture::create(&server);
    server.stop();

    move_database(&data, &aside);
    let message = fail_to_start(&data);
    assert!(message.contains("node.sqlite is missing or empty") && message.contains("files of 3"), "{message}");
    assert!(!data.join("node.sqlite").exists(), "none was made");
    std::fs::write(data.join("node.sqlite"), "").expect("written");
    fail_to_start(&data);
    move_database(&aside, &data);
    server.start_again();
    fixture.check(&server);
    assert_eq!(list_trash(&server), [Value::Null; 0], "a normal start raises no alarm");
    server.stop();

    // With an accepted or an older database the server lists all files without a record as trash,
    // and `sandbar recover` makes records for them.
    for old in [false, true] {
        move_database(&data, &aside);
        if old {
            std::fs::copy(aside.join("yesterday"), data.join("node.sqlite")).expect("a copy");
            server.start_again();
        } else {
            server.start_again_with(&["--no-studio", "--accept-missing-files"]);
        }
        assert_eq!(connect(&server, &fixture.sandbox.id).0, 404, "no record names it");
        let found = list_trash(&server);
        let mut kinds: Vec<_> = found.iter().map(|row| row["kind"].as_str().expect("text")).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["sandbox", "template", "volume"], "{found:?}");
        let counted = count_trash(&data);
        assert!(counted.starts_with("3 that no record names, ") && counted.contains("sandbar recover"), "{counted}");
        let mut recover = Command::new(PROGRAM);
        testing::without_settings(&mut recover).args(["recover", "--all", "--json", "--data"]).arg(&data);
        let recover = recover.output().expect("it runs");
        assert!(recover.status.success(), "{recover:?}");
        assert_eq!(list_trash(&server), [Value::Null; 0]);
        assert_eq!(count_trash(&data), "empty: a record names every file of the pool");
        fixture.check(&server);
        server.stop();
        server.start_again_with(&["--no-studio"]);
        fixture.check(&server);
        assert_eq!(list_trash(&server), [Value::Null; 0]);
        server.stop();
    }
    server.start_again();
}

/// What `sandbar doctor` says of the files without a record.
fn count_trash(data: &Path) -> String {
    let mut doctor = Command::new(PROGRAM);
    testing::without_settings(&mut doctor).args(["doctor", "--json", "--data"]).arg(data);
    let home = data.join("none");
    let printed = doctor.env("XDG_DATA_HOME", &home).env("XDG_CONFIG_HOME", &home).output().expect("it runs").stdout;
    let report: Value = serde_json::from_slice(&printed).expect("JSON");
    let is_trash = |found: &&Value| found["what"] == "trash";
    let trash = report["workspaces"].as_array().expect("a list").iter().find(is_trash).expect("a line");
    trash["found"].as_str().expect("text").to_owned()
}

/// Two sandboxes with a short timeout: the guest of one pauses then, that of the other ends.
struct TimedSandboxes {
    paused: Sandbox,
    killed: Sandbox,
    /// A command in the first sandbox.
    pid: u64,
    boot_id: String,
}

impl TimedSandboxes {
    /// `None` if the machine is so slow that a timeout may have passed meanwhile.
    fn prepare(server: &Server, timeout: Duration) -> Option<Self> {
        let begun = Instant::now();
        let body = |pause: bool| json!({ "templateID": "base", "timeout": timeout.as_secs(), "autoPause": pause });
        let (paused, killed) = (server.create_with(body(true)), server.create_with(body(false)));
        let mut sleeper = paused.try_start_as("user", "exec sleep 3600").ok()?;
        let pid = sleeper.next_event().ok()??["start"]["pid"].as_u64()?;
        let boot_id = paused.read("/proc/sys/kernel/random/boot_id").text();
        (begun.elapsed() < timeout / 2).then_some(Self { paused, killed, pid, boot_id })
    }
}

#[test]
fn a_timeout_without_a_server_pauses_with_memory() {
    /// Longer than a guest whose timeout kills it waits for a server.
    const AFTER: Duration = Duration::from_secs(35);
    let mut server = Server::with(&["--no-studio"]);
    // The shortest timeout with which both sandboxes still run when the server is killed.
    let timeouts = [8, 16, 32, 64].map(Duration::from_secs);
    let prepared = timeouts.into_iter().find_map(|timeout| Some((timeout, TimedSandboxes::prepare(&server, timeout)?)));
    let (timeout, TimedSandboxes { paused, killed, pid, boot_id }) =
        prepared.expect("a machine that makes two sandboxes in 64 s");
    server.kill_9();
    // A fixed sleep: the test asserts that the guest does not end, which no event shows.
    std::thread::sleep(timeout + AFTER);
    server.start_again();
    let state = || server.call("GET", &format!("/sandboxes/{}", paused.id), None).json()["state"].clone();
    eventually("it is paused", Duration::from_secs(30), || (state() == "paused").then_some(()));
    assert_eq!(server.call("GET", &format!("/sandboxes/{}", killed.id), None).status, 404);
    let resumed = resume(&server, &paused.id);
    resumed.must("user", &format!("kill -0 {pid}"));
    assert_eq!(resumed.read("/proc/sys/kernel/random/boot_id").text(), boot_id, "the same boot, with its memory");

    // The sandbox that was killed while no server ran can be recovered from the trash.
    let reply = server.call("POST", &format!("/sandbar/trash/{}", killed.id), None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    resume(&server, &killed.id);
}
